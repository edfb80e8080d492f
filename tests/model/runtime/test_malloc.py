"""What a thread has freed goes back to the system, and not only what the main thread has."""

import ctypes
import subprocess
import sys
import threading

import psutil
import pytest

from s2sent.model.runtime.malloc import PROBE_BYTES, TRIM_THRESHOLD_BYTES, return_freed_memory

LIBC = ctypes.CDLL(None)
BLOCK_BYTES = 64_000  # small enough for the thread's own heap
KEPT_BYTES = TRIM_THRESHOLD_BYTES // 2  # less than glibc would give back by itself

pytestmark = pytest.mark.skipif(
    not hasattr(LIBC, "gnu_get_libc_version"), reason="only glibc keeps memory in this way"
)


def resident_bytes() -> int:
    resident: int = psutil.Process().memory_info().rss
    return resident


def take_and_free() -> None:
    LIBC.malloc.restype = ctypes.c_void_p
    blocks = [LIBC.malloc(ctypes.c_size_t(BLOCK_BYTES)) for _ in range(KEPT_BYTES // BLOCK_BYTES)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK_BYTES)
    for block in blocks:
        LIBC.free(ctypes.c_void_p(block))


def test_a_thread_gives_back_the_end_of_its_heap() -> None:
    seen = []

    def work() -> None:
        return_freed_memory()
        before = resident_bytes()
        take_and_free()
        kept = resident_bytes() - before
        return_freed_memory()
        seen.append((kept, resident_bytes() - before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    ((kept, left),) = seen
    assert kept > KEPT_BYTES // 2, "glibc kept nothing, so this shows nothing"
    assert left < KEPT_BYTES // 4 + PROBE_BYTES


def test_it_may_be_called_by_several_threads_and_again() -> None:
    threads = [threading.Thread(target=return_freed_memory) for _ in range(8)]
    for thread in threads:
        thread.start()
    return_freed_memory()
    for thread in threads:
        thread.join()
    assert not any(thread.is_alive() for thread in threads)


def test_threads_share_one_heap_when_told() -> None:
    """In a process of its own, because there is no way back."""
    code = """
import ctypes, threading
from s2sent.model.runtime.malloc import share_one_heap
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
heap = next(line.split()[0] for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]"))
start = int(heap.split("-")[0], 16)
share_one_heap()
found = []
thread = threading.Thread(target=lambda: found.append(libc.malloc(ctypes.c_size_t(1000))))
thread.start()
thread.join()
end = max(int(l.split()[0].split("-")[1], 16) for l in open("/proc/self/maps") if "[heap]" in l)
assert start <= found[0] < end, (hex(start), hex(found[0]), hex(end))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
