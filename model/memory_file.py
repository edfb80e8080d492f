"""Verified bytes as a file that nobody can exchange, for libraries that would copy bytes first."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Where Linux shows a process its open files (proc(5)).
OPEN_FILES = Path("/proc/self/fd")


@contextmanager
def in_memory_file(content: bytes) -> Iterator[str | bytes]:
    """Yields a path that has ``content`` until the end, and keeps nothing of ``content`` itself.

    The file lies in memory and has no name in any folder (memfd_create(2)). ONNX Runtime reads a
    file in pieces; of bytes it makes a copy for each session, whose pages take longer to get than
    the weights take to pack. Where there are no such files, ``content`` is yielded.
    """
    if not (hasattr(os, "memfd_create") and OPEN_FILES.is_dir()):
        yield content
        return
    descriptor = os.memfd_create("s2sent")
    try:
        rest = memoryview(content)
        del content
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        del rest
        yield str(OPEN_FILES / str(descriptor))
    finally:
        os.close(descriptor)
