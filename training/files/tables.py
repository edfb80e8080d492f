"""Reads files of sentences, and names the type of a pair of them."""

from pathlib import Path

from s2sent.training.errors import DataError

Pair = tuple[str, str]


def read_sentences(path: Path) -> list[str]:
    """The lines of a file, as they are. Raises `DataError` for one that is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 ({error}): name a file of sentences, one a line."
        ) from None
