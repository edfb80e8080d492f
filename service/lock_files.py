"""Opens lock files; a link, a device or a pipe in their place is refused.

Imports the standard library only.
"""

import errno
import os
import stat
from pathlib import Path


def open_lock_file(path: Path, mode: int = 0o666) -> int:
    """Open a lock file, or make it, as a descriptor; what is in it stays.

    Raises OSError where it cannot be opened, and where the name leads to another file: through a
    symbolic or a hard link, or as a device or pipe.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _is_no_file(path) from None
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise _is_no_file(path)
    return descriptor


def _is_no_file(path: Path) -> OSError:
    return OSError(errno.ELOOP, f"{path.name} is a link or no file; remove it")
