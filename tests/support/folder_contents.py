"""The files of a folder, to be compared byte for byte."""

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file by its path in the folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
