"""SIGTERM and Ctrl-C during a run: an exception, raised where no lock can be held."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from s2sent.service.bulk.job import Stopped

NUMBERS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """While it is entered, the first SIGTERM or SIGINT raises Stopped in the main thread.

    A handler runs between any two bytecodes, also inside the locks of an executor: an exception
    there leaves the lock taken, and whoever waits for it waits for ever. Code that shares locks
    with other threads therefore runs in ``deferred()`` and calls ``check()`` where it can stop.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._deferred = False

    def __enter__(self) -> "StopSignals":
        self._before = [signal.signal(number, self._receive) for number in NUMBERS]
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, handler in zip(NUMBERS, self._before, strict=True):
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, a signal is only noted; at the end it raises, unless something else does."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
        self.check()

    def check(self) -> None:
        """Raise Stopped if a signal has come."""
        if self._received is not None:
            raise Stopped(self._received)

    def _receive(self, number: int, _frame: object) -> None:
        for each in NUMBERS:  # one is enough: the clean-up is quick
            signal.signal(each, signal.SIG_IGN)
        self._received = number
        if not self._deferred:
            self.check()
