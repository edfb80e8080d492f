"""Calls that no answer waits for, such as recording a request, made together a little later."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

DELAY_SECONDS = 0.01


class DeferredCalls:
    """Calls made in their order, at most `DELAY_SECONDS` after the first of them was added.

    After a run of the encoder the caches hold its weights, so the code of the first call is slow to
    start; together, calls share that cost, and none of them stands between two requests of a client
    that sends one after the other.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    def add(self, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function`` soon. To be called on the event loop."""
        if not self._calls:
            asyncio.get_running_loop().call_later(DELAY_SECONDS, self.run)
        self._calls.append((function, arguments))

    def run(self) -> None:
        """Make the calls that are waiting, now. Safe to call from any thread.

        One that raises is logged, and the others are made.
        """
        while self._calls:
            try:
                function, arguments = self._calls.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                function(*arguments)
            except Exception:  # the edge of a call that nobody awaits
                logger.exception("a deferred call failed")
