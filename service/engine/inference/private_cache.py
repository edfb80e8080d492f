"""Folders that keep what is served: who may write them could replace the model."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import s2sent
from s2sent.service.lock_files import open_lock_file

CODE = Path(s2sent.__file__).parents[1]  # where the modules are that belong to this code
UMASK = 0o077  # with which an entry is made
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(name: str) -> Path:
    """``s2sent/name`` in the cache of the XDG Base Directory Specification.

    It is relative where neither HOME nor an account names a home folder.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(os.path.expanduser("~"), ".cache")
    return base / "s2sent" / name


@contextmanager
def locked(entry: Path) -> Iterator[int]:
    """Let one process at a time make an entry; the others wait for what it makes.

    Yields the descriptor of the lock. Raises OSError where the entry's folder cannot be written,
    or is that of a user without a home folder.
    """
    if not entry.is_absolute():
        raise OSError(errno.ENOENT, "this user has no home folder")
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_lock_file(entry.with_name(f"{entry.name}.lock"), 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def run_module(*command: str | Path, lock: int) -> str:
    """Run a module, with its arguments, to make an entry: what it said last where it failed, or "".

    It has the lock too: the entry stays locked where only this process ends.
    """
    done = subprocess.run(  # noqa: S603  # this Python, with folders as arguments
        [sys.executable, "-m", *command],
        cwd=CODE,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        pass_fds=(lock,),
        umask=UMASK,
        check=False,
    )
    lines = done.stderr.strip().splitlines() or [f"It ended with status {done.returncode}."]
    return lines[-1] if done.returncode else ""


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
