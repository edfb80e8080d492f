"""Folders that keep what is served: who may write them could replace the model.

Imports the standard library only.
"""

import os
import stat
from pathlib import Path

UMASK = 0o077  # with which an entry is made
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def written_by_others(path: Path) -> str:
    """That others than this user and root may write a file or folder; empty where they may not.

    Raises OSError where it is not there.
    """
    found = path.stat()
    if found.st_uid in (0, os.geteuid()) and not found.st_mode & _OTHERS_MAY_WRITE:
        return ""
    return f"others may write it (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o})"


def is_private(entry: Path) -> bool:
    """Whether none but this user and root may write an entry, which is there, or part of it."""
    return not any(written_by_others(part) for part in (entry, *entry.rglob("*")))
