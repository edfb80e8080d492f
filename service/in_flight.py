"""The requests being answered: each has a deadline, and all can be ended at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class InFlight:
    """A set of timeout scopes, one per request. The loop's timer ends them, never a thread."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()

    def __len__(self) -> int:
        return len(self._scopes)

    @asynccontextmanager
    async def until(self, timeout_seconds: float) -> AsyncIterator[None]:
        """Counts as in flight what runs inside; raises TimeoutError when its time is over."""
        async with asyncio.timeout(timeout_seconds) as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
                if not self._scopes:
                    self._idle.set()

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
