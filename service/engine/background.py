"""Work in a thread of its own, which does not keep the process from ending."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def in_background(work: Callable[[], Result], *, name: str) -> Future[Result]:
    """Begins ``work`` in a daemon thread called ``name``; its result, or what it raises, comes.

    The threads of `concurrent.futures` are waited for when Python ends, which a start that hangs
    would not survive.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # handed to whoever waits
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
