"""Work in a daemon thread, which does not keep the process from ending."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from s2sent.service.engine.panics import PanicsAsErrors
from s2sent.service.threads import start_thread

Result = TypeVar("Result")


def in_background(work: Callable[[], Result], *, name: str) -> Future[Result]:
    """Start ``work`` in a daemon thread called ``name``; the future has its result or its error.

    A panic of a Rust library becomes `service.engine.panics.Panic`. The threads of
    `concurrent.futures` would not do: Python waits for them when it ends, also for one that hangs.
    Raises NoMoreThreads.
    """
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()  # from now on nobody can cancel it

    def run() -> None:
        try:
            with PanicsAsErrors():
                result = work()
        except BaseException as error:  # the edge of the thread: the future's owner would wait
            future.set_exception(error)
        else:
            future.set_result(result)

    start_thread(threading.Thread(target=run, name=name, daemon=True))
    return future
