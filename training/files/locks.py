"""Locks by which processes that share a folder take turns, on the files beside what they lock.

The operating system releases a lock when its process ends, however that was.
"""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}

logging.getLogger("filelock").setLevel(logging.WARNING)


def lock_of(path: Path) -> FileLock:
    """The lock of a file or folder, beside it; it follows no link and leaves what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f"{path.name}.lock"))


def try_lock(lock: FileLock, *, wait: bool = False) -> bool:
    """Whether this process has the lock now; also where the file system has no locks.

    With ``wait`` it has it once another process has ended or given it back.
    """
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def release(lock: FileLock) -> None:
    """Give a lock back and leave no file of it; one who waits for it sees that its file is gone."""
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a file or folder within the block; yields whether this process has it."""
    lock = lock_of(path)
    has = try_lock(lock, wait=wait)
    try:
        yield has
    finally:
        if has:
            release(lock)
