"""Starting threads: all when a process starts, and a sentence where the system starts no more.

A limit of processes (``ulimit -u``, or ``pids.max`` of a container) counts threads too. Imports
the standard library only.
"""

import threading
from concurrent.futures import ThreadPoolExecutor


class NoMoreThreads(Exception):
    """The system starts no more threads for this process; the message says what to do."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; raises NoMoreThreads."""
    try:
        thread.start()
    except RuntimeError:
        raise no_more_threads(thread.name) from None


def pool_of(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads have all been started; raises NoMoreThreads.

    A `ThreadPoolExecutor` starts a thread when work comes, which a limit then fails.
    """
    pool = ThreadPoolExecutor(threads, name)
    all_run = threading.Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(all_run.wait)
    except RuntimeError:
        all_run.abort()
        pool.shutdown(wait=False, cancel_futures=True)
        raise no_more_threads(name) from None
    all_run.wait()
    return pool


def no_more_threads(name: str) -> NoMoreThreads:
    """The error of a thread that the system does not start."""
    return NoMoreThreads(
        f"The system does not start the thread {name!r} beside the {threading.active_count()} of"
        " this process. Raise the limit of processes (ulimit -u, or pids of the container), or"
        " lower S2SENT_THREADS."
    )
