"""Writes tables of related pairs, which a recipe can name as a source, and reads sentences."""

from collections.abc import Sequence
from pathlib import Path

from s2sent.training.errors import ConfigError, DataError

Pair = tuple[str, str]


def require_new_table(path: Path) -> None:
    """Raise `ConfigError` for a table that exists, or that would not be read as pairs."""
    if path.suffix != ".tsv":
        raise ConfigError(
            f"{path} must end in .tsv, because a corpus of pairs is a table: name "
            f"{path.with_suffix('.tsv')}."
        )
    if path.exists():
        raise ConfigError(f"{path} exists: remove it, or name another file.")


def write_table(path: Path, header: Pair, pairs: Sequence[Pair]) -> None:
    """Write the header and the pairs, a line each, and the folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ("\t".join(row) + "\n" for row in (header, *pairs))
    path.write_text("".join(lines), encoding="utf-8")


def read_sentences(path: Path) -> list[str]:
    """The lines of a file, as they are. Raises `DataError` for one that is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 ({error}): name a file of sentences, one a line."
        ) from None
