"""A copy of a file in memory that nobody can change or exchange: its bytes, and a path to them."""

import mmap
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

# Where Linux shows a process its open files (proc(5)).
OPEN_FILES = Path("/proc/self/fd")


class MemoryFile:
    """What a file had in it when it was copied, without a name in any folder (memfd_create(2)).

    ``content`` are its bytes, good until `close`. ``source`` is a path to them, for libraries that
    read a file in pieces and would make a copy of bytes: ONNX Runtime makes one for each session,
    whose pages take longer to get than the weights take to pack. Where such files cannot be had,
    ``source`` is bytes.
    """

    def __init__(self, file: BinaryIO, limit: int) -> None:
        """Copies the first ``limit`` bytes of ``file``, or fewer where it ends before."""
        self.content: memoryview
        self.source: str | bytes
        self._release: Callable[[], object] = bool  # nothing, where there is no descriptor
        if hasattr(os, "memfd_create") and OPEN_FILES.is_dir():
            with suppress(OSError):  # a hardened kernel, a file system that copies in no such way
                self._copy(file, limit)
                return
        self._release()
        self.source = file.read(limit)
        self.content = memoryview(self.source)

    def close(self) -> None:
        """Give the memory back; whoever has opened ``source`` may go on reading."""
        self.content, self.source = memoryview(b""), b""
        self._release()

    def _copy(self, file: BinaryIO, limit: int) -> None:
        import fcntl  # not everywhere

        descriptor = os.memfd_create("s2sent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._release = weakref.finalize(self, os.close, descriptor)
        copied = 0
        while part := os.sendfile(descriptor, file.fileno(), copied, limit - copied):
            copied += part
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK)
        self.source = str(OPEN_FILES / str(descriptor))
        self.content = memoryview(b"")
        if copied:
            self.content = memoryview(mmap.mmap(descriptor, copied, prot=mmap.PROT_READ))
