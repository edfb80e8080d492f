"""File locks by which processes that share a folder of results take turns.

The operating system releases a lock when its process ends, however that was.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from s2sent.training.files.locks import try_lock

log = logging.getLogger(__name__)


def lock_of(path: Path) -> Path:
    """The lock of a checkpoint or a file of results, beside it."""
    return path.with_name(f"{path.name}.lock")


@contextmanager
def claim(lock: Path, name: str) -> Iterator[bool]:
    """Claim what ``name`` says within the block; yields whether it is free, and else logs whose."""
    with claimed(lock) as owner:
        if owner is not None:
            log.info("%s is being run by process %d", name, owner)
        yield owner is None


@contextmanager
def claimed(lock: Path) -> Iterator[int | None]:
    """Claim a lock within the block; yields None, or the pid of the process that has it already."""
    descriptor = _lock(lock)
    if descriptor is None:
        yield _owner(lock)
        return
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield None
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _owner(lock: Path) -> int:
    """The pid in a lock; 0 where its process has just taken or left it."""
    try:
        return int(lock.read_text())
    except (OSError, ValueError):
        return 0


def _lock(path: Path) -> int | None:
    """The descriptor of the locked file; None where another process has the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not try_lock(descriptor):
            os.close(descriptor)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # its previous owner deleted the file in the meantime
