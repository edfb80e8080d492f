"""The locks of an output folder: flock(2), which ends with the process that holds it."""

import errno
import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from s2sent.service.bulk.job import OutputError, Shard
from s2sent.service.bulk.output.atomic_files import writing
from s2sent.service.lock_files import open_lock_file

LOCK = ".lock"
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # file systems without flock(2)


class FolderLocks:
    """What this process holds of a folder: a lone run all of it, a shard its own name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: list[int] = []

    def take(self, shard: Shard) -> None:
        """Lock the folder for a run; raises OutputError where another process has it."""
        self._flock(LOCK, fcntl.LOCK_EX if shard.count == 1 else fcntl.LOCK_SH)
        if shard.count > 1:
            self._flock(f"{LOCK}-{shard.index}-of-{shard.count}", fcntl.LOCK_EX)

    def are_alone(self) -> bool:
        """Whether no other shard has the folder, whose temporary files may be about to be named."""
        try:
            fcntl.flock(self._held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def release(self) -> None:
        """Give them back."""
        while self._held:
            os.close(self._held.pop())

    def _flock(self, name: str, kind: int) -> None:
        with writing(self._folder / name):
            descriptor = open_lock_file(self._folder / name)
            self._held.append(descriptor)
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
                raise OutputError(
                    f"{self._folder} is being written by another process ({holder or 'unknown'})."
                    " Wait for it, or name another folder."
                ) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
        with suppress(OSError):
            os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
