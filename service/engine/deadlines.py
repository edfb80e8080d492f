"""The requests in flight: each has a deadline, and all can be ended at once."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from s2sent.service.errors import DeadlineExceeded, ServiceError
from s2sent.service.telemetry.metrics import Metrics


class InFlightRequests:
    """A set of timeout scopes, one per request.

    The event loop's timer ends a scope, never a thread: a request is answered at its deadline also
    while a tokenizer or an encoder hangs.
    """

    def __init__(self, metrics: Metrics, limit_seconds: float) -> None:
        """``limit_seconds`` is the setting ``request_timeout_seconds``, which errors name."""
        self._metrics = metrics
        self._limit_seconds = limit_seconds
        self._scopes: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._abort_error: Callable[[], ServiceError] | None = None

    def __len__(self) -> int:
        return len(self._scopes)

    def track(
        self, timeout_seconds: float | None, *, stage: Callable[[], str]
    ) -> "_TrackedRequest":
        """Count the body of an ``async with`` as a request in flight; by default to the limit.

        Raises DeadlineExceeded when its time is over, and the error of `abort` after that was
        called. ``stage`` names the stage the request is in: ``tokenize``, ``queue``,
        ``inference`` or ``serialize``.
        """
        seconds = self._limit_seconds if timeout_seconds is None else timeout_seconds
        return _TrackedRequest(self, asyncio.timeout(seconds), stage)

    def add(self, scope: asyncio.Timeout) -> None:
        """Count a request, by the scope that ends it."""
        self._scopes.add(scope)

    def remove(self, scope: asyncio.Timeout) -> None:
        self._scopes.discard(scope)
        if not self._scopes:
            self._idle.set()

    def abort(self, error: Callable[[], ServiceError]) -> None:
        """End every request in flight now; each raises an ``error`` of its own."""
        self._abort_error = error
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)

    async def is_idle_within(self, timeout_seconds: float) -> bool:
        """Wait until nothing is in flight; return whether that came to be in time.

        A request that leaves one scope and enters the next is in flight all the time.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while self._scopes:
                    self._idle.clear()
                    await self._idle.wait()
        return not self._scopes

    def given_up(self, stage: str) -> None:
        """A request's caller waits no more."""
        self._metrics.cancelled.labels(stage).inc()

    def out_of_time(self, stage: str) -> ServiceError:
        """The error of a request whose scope has ended."""
        if self._abort_error is not None:
            self._metrics.failed.labels("stopped").inc()
            return self._abort_error()
        self._metrics.timed_out.labels(stage).inc()
        return DeadlineExceeded(
            f"The request's time ran out in the stage {stage}; request_timeout_seconds is"
            f" {self._limit_seconds:g}. Send fewer texts, or try later."
        )


class _TrackedRequest:
    """The time one request is in flight. A class: a generator takes three times as long."""

    __slots__ = ("_requests", "_scope", "_stage")

    def __init__(
        self, requests: InFlightRequests, scope: asyncio.Timeout, stage: Callable[[], str]
    ) -> None:
        self._requests = requests
        self._scope = scope
        self._stage = stage

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        self._requests.add(self._scope)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._requests.remove(self._scope)
        try:
            await self._scope.__aexit__(kind, error, traceback)
        except TimeoutError:
            raise self._requests.out_of_time(self._stage()) from None
        if kind is asyncio.CancelledError:
            self._requests.given_up(self._stage())
