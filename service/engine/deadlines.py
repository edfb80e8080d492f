"""The requests being answered: each has a deadline, and all can be ended at once."""

import asyncio
from contextlib import suppress
from types import TracebackType


class InFlightRequests:
    """A set of timeout scopes, one per request. The loop's timer ends them, never a thread."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()

    def __len__(self) -> int:
        return len(self._scopes)

    def track(self, timeout_seconds: float) -> "_Stay":
        """Counts as in flight what runs inside; raises TimeoutError when its time is over."""
        return _Stay(self._scopes, self._idle, asyncio.timeout(timeout_seconds))

    def expire_all(self) -> None:
        """Makes this moment the deadline of every request in flight."""
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)

    async def is_idle_within(self, timeout_seconds: float) -> bool:
        """Waits until nothing is in flight, and returns whether that came to be in time."""
        self._idle.clear()
        if self._scopes:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout_seconds)
        return not self._scopes


class _Stay:
    """The time one request is in flight."""

    __slots__ = ("_idle", "_scope", "_scopes")

    def __init__(
        self, scopes: set[asyncio.Timeout], idle: asyncio.Event, scope: asyncio.Timeout
    ) -> None:
        self._scopes = scopes
        self._idle = idle
        self._scope = scope

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        self._scopes.add(self._scope)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scopes.discard(self._scope)
        if not self._scopes:
            self._idle.set()
        await self._scope.__aexit__(kind, error, traceback)
