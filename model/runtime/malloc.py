"""Giving back to the system what this process has freed, which the C library keeps for later."""

import ctypes
from functools import cache
from typing import Any

# Parameters of mallopt(3). glibc finds values for them while large blocks are freed, until one is
# set; these are about what it finds where the largest is a thousand tokens' inner layer.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_THRESHOLD_BYTES = 8 << 20
TRIM_THRESHOLD_BYTES = 2 * MMAP_THRESHOLD_BYTES
# Above 64 KiB freeing looks whether the end of the thread's heap can be given back.
PROBE_BYTES = 256 << 10


def return_freed_memory() -> None:
    """Give back what the calling thread has freed, and what it can of the rest; takes milliseconds.

    glibc keeps megabytes at the end of each thread's heap, where `malloc_trim` does not look;
    only a thread that frees something there gives it back, and only above a threshold. Elsewhere
    than with glibc nothing is done.
    """
    libc = _glibc()
    if libc is None:
        return
    libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    libc.mallopt(M_TRIM_THRESHOLD, 0)
    libc.free(libc.malloc(PROBE_BYTES))
    libc.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    libc.malloc_trim(0)


@cache
def _glibc() -> Any:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return None
    libc.malloc.argtypes = (ctypes.c_size_t,)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    return libc
