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


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a file or folder within the block; yields whether this process has it.

    With ``wait`` it has it once another process has ended or given it back. It has it, too, where
    the file system has no locks. The lock is a file beside ``path``; it follows no link.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock, has = FileLock(path.with_name(f"{path.name}.lock")), True
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        has = False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield has
    finally:
        if has:  # one who waits sees that the file is gone
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()
