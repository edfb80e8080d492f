"""A lock of an open file, flock(2), which ends with the process that holds it."""

import errno
import fcntl
from typing import IO

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


def try_lock(file: IO[bytes] | int) -> bool:
    """Whether this process has the lock now; also where the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True
