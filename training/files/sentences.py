"""Reads files of sentences, names the type of a pair of them, and says where a file is missing."""

from pathlib import Path

from s2sent.training.errors import DataError

Pair = tuple[str, str]

NAMES_SHOWN = 12  # of what a folder holds


def read_sentences(path: Path) -> list[str]:
    """The lines of a file, as they are. Raises `DataError` for one that is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 ({error}): name a file of sentences, one a line."
        ) from None


def not_a_file(path: Path) -> str:
    """The sentence on a missing file, with what the nearest folder that exists holds."""
    folder = next((each for each in path.parents if each.is_dir()), Path())
    names = sorted(each.name + "/" * each.is_dir() for each in folder.iterdir())
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    held = ", ".join(names[:NAMES_SHOWN]) + more if names else "nothing"
    return f"{path} is not a file, and {folder} holds {held}: name the folder that holds it."
