"""Says of a file that is missing what there is in its place."""

from pathlib import Path

NAMES_SHOWN = 12


def not_a_file(path: Path) -> str:
    """The sentence on a missing file, with what the nearest folder that exists holds."""
    folder = next((each for each in path.parents if each.is_dir()), Path())
    names = sorted(each.name + "/" * each.is_dir() for each in folder.iterdir())
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    held = ", ".join(names[:NAMES_SHOWN]) + more if names else "nothing"
    return f"{path} is not a file, and {folder} holds {held}: name the folder that holds it."
