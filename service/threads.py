"""Threads: started when a process starts, with a sentence where the system starts no more.

A limit of processes (``ulimit -u``, or ``pids.max`` of a container) counts threads too. Imports
the standard library only.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class NoMoreThreads(Exception):
    """The system starts no more threads for this process; the message says what to do."""


class Panic(Exception):
    """Code written in Rust, such as the tokenizer, has panicked."""


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


def in_background(work: Callable[[], Result], *, name: str) -> Future[Result]:
    """Start ``work`` in a daemon thread called ``name``; the future has its result or its error.

    A panic of a Rust library becomes `Panic`. The threads of `concurrent.futures` would not do:
    Python waits for them when it ends, also for one that hangs. Raises NoMoreThreads.
    """
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()  # from now on nobody can cancel it

    def run() -> None:
        try:
            result = contain_panics(work)
        except BaseException as error:  # the edge of the thread: the future's owner would wait
            future.set_exception(error)
        else:
            future.set_result(result)

    start_thread(threading.Thread(target=run, name=name, daemon=True))
    return future


def contain_panics(work: Callable[[], Result]) -> Result:
    """The result of ``work``; raises `Panic` for PyO3's PanicException, which is a BaseException.

    Handlers of Exception would miss it: a request would end without an answer, and a thread
    without a result (https://pyo3.rs/main/doc/pyo3/panic/struct.panicexception).
    """
    try:
        return work()
    except BaseException as error:  # the class cannot be imported, so it is known by name
        if type(error).__name__ != "PanicException":
            raise
        raise Panic(str(error)) from error


def no_more_threads(name: str) -> NoMoreThreads:
    """The error of a thread that the system does not start."""
    return NoMoreThreads(
        f"The system does not start the thread {name!r} beside the {threading.active_count()} of"
        " this process. Raise the limit of processes (ulimit -u, or pids of the container), or"
        " lower S2SENT_THREADS."
    )
