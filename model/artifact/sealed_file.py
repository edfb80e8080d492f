"""Sealed in-memory copies of files, which cannot be changed after they were verified."""

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
    """The content of a file when it was copied, in an anonymous sealed file (memfd_create(2)).

    ``content`` are its bytes, valid until `close`. ``source`` is a path to the same bytes, for
    libraries that read a file in pieces: given bytes, ONNX Runtime copies them for each session,
    which takes longer than packing the weights. Where the system has no such files, ``source`` is
    the bytes themselves.
    """

    def __init__(self, file: BinaryIO, limit: int) -> None:
        """Copy the first ``limit`` bytes of ``file``, or all where it has fewer."""
        self.content: memoryview
        self.source: str | bytes
        self._release: Callable[[], object] = bool  # nothing, where there is no descriptor
        if hasattr(os, "memfd_create") and OPEN_FILES.is_dir():
            with suppress(OSError):  # a hardened kernel, or a file system without sendfile(2)
                self._copy(file, limit)
                return
        self._release()
        self.source = file.read(limit)
        self.content = memoryview(self.source)

    def close(self) -> None:
        """Release the memory; a reader that has opened ``source`` keeps its own descriptor."""
        self.content, self.source = memoryview(b""), b""
        self._release()

    def _copy(self, file: BinaryIO, limit: int) -> None:
        import fcntl  # not on Windows

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
