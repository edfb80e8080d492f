"""The requests in flight: each has a deadline, and all can be ended at once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from service.errors import DeadlineExceeded, ServiceError
from service.metrics import Metrics


class InFlightRequests:
    """A set of timeout scopes, one per request.

    The event loop's timer ends a scope, never a thread: a request is answered at its deadline also
    while a tokenizer or an encoder hangs.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._scopes: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._abort_error: Callable[[], ServiceError] | None = None

    def __len__(self) -> int:
        return len(self._scopes)

    @asynccontextmanager
    async def track(
        self, timeout_seconds: float, *, stage: Callable[[], str]
    ) -> AsyncIterator[None]:
        """Count the body of the ``async with`` as a request in flight.

        Raises DeadlineExceeded when its time is over, and the error of `abort` after that was
        called. ``stage`` names the stage the request is in: ``tokenize``, ``queue`` or
        ``inference``.
        """
        scope = asyncio.timeout(timeout_seconds)
        try:
            async with scope:
                self._scopes.add(scope)
                try:
                    yield
                finally:
                    self._scopes.discard(scope)
                    if not self._scopes:
                        self._idle.set()
        except TimeoutError:
            raise self._out_of_time(stage()) from None
        except asyncio.CancelledError:
            self._metrics.cancelled.labels(stage()).inc()
            raise

    def abort(self, error: Callable[[], ServiceError]) -> None:
        """End every request in flight now; each raises an ``error`` of its own."""
        self._abort_error = error
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)

    async def is_idle_within(self, timeout_seconds: float) -> bool:
        """Wait until nothing is in flight; return whether that came to be in time."""
        self._idle.clear()
        if self._scopes:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        return not self._scopes

    def _out_of_time(self, stage: str) -> ServiceError:
        """The error of a request whose scope has ended."""
        if self._abort_error is not None:
            self._metrics.failed.labels("stopped").inc()
            return self._abort_error()
        self._metrics.timed_out.labels(stage).inc()
        return DeadlineExceeded(
            f"The request's time ran out in the stage {stage}. Send fewer texts, or try later."
        )
