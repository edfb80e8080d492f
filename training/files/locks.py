"""A lock of an open file, flock(2), which ends with the process that holds it."""

import errno
import fcntl
from typing import IO, Any

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def try_lock(file: IO[Any] | int, *, wait: bool = False) -> bool:
    """Whether this process has the lock now; also where the file system has no locks.

    With ``wait`` it has it once another process has ended or given it back.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True
