"""Returning freed memory from glibc's allocator to the operating system."""

import ctypes
from functools import cache
from typing import Any

# Parameters of mallopt(3). Setting one stops glibc from adjusting it while large blocks are freed;
# these values are near those that it finds for batches of a thousand tokens.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
MMAP_THRESHOLD_BYTES = 8 << 20
TRIM_THRESHOLD_BYTES = 2 * MMAP_THRESHOLD_BYTES
# Freeing a block of more than 64 KiB makes glibc try to trim the end of the thread's heap.
PROBE_BYTES = 256 << 10


def return_freed_memory() -> None:
    """Return the calling thread's freed memory, and what can be of the rest; takes milliseconds.

    glibc keeps megabytes at the end of each thread's heap, where malloc_trim(3) does not look; only
    a thread that frees something there returns them, and only above a threshold. Does nothing with
    another C library.
    """
    libc = _glibc()
    if libc is None:
        return
    libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    libc.mallopt(M_TRIM_THRESHOLD, 0)
    libc.free(libc.malloc(PROBE_BYTES))
    libc.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
    libc.malloc_trim(0)


def share_one_heap() -> None:
    """Let threads that are started from now on allocate from one heap, for less memory.

    By default glibc gives each of them a heap of its own, and each keeps what it once needed. It
    is for programs whose threads allocate seldom and much, as those that only run sessions do.
    Does nothing with another C library.
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(M_ARENA_MAX, 1)


@cache
def _glibc() -> Any:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return None
    libc.malloc.argtypes = (ctypes.c_size_t,)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    return libc
