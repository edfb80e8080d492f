"""Rate limits of API keys: a token bucket for requests and one for tokens, per key.

A bucket refills evenly and holds at most one minute's allowance, so a client that was idle may send
a minute's worth at once. The tokens of a request are charged when it has been embedded, before its
answer begins: the balance may become negative, and until it is positive again requests are refused.
"""

import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import astuple
from typing import Any, Protocol

from s2sent.service.access.api_keys import Key
from s2sent.service.errors import QuotaExceeded
from s2sent.service.telemetry.metrics import Metrics

Clock = Callable[[], float]


class TokenBucket:
    """An allowance of ``per_minute`` that starts full."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._balance = float(per_minute)
        self._refilled = clock()

    def take(self, amount: int) -> None:
        """Subtract an amount; the balance may become negative."""
        self._refill()
        self._balance -= amount

    def seconds_until(self, balance: int) -> float:
        """Seconds until the balance is at least this, 0 if it already is."""
        self._refill()
        return max(0.0, (balance - self._balance) * 60 / self._per_minute)

    def _refill(self) -> None:
        now = self._clock()
        gained = (now - self._refilled) * self._per_minute / 60
        self._balance = min(self._balance + gained, self._per_minute)
        self._refilled = now


class _KeyBuckets:
    """The buckets of one key; None for a limit it does not have."""

    def __init__(self, key: Key, clock: Clock) -> None:
        requests, tokens = key.requests_per_minute, key.tokens_per_minute
        self.requests = TokenBucket(requests, clock) if requests else None
        self.tokens = TokenBucket(tokens, clock) if tokens else None


class Limiter(Protocol):
    """What `service.access.auth` needs of the limits of keys, wherever they are kept."""

    async def admit(self, key: Key) -> None: ...
    async def charge(self, key: Key, tokens: int) -> None: ...


class RateLimiter:
    """Admits or refuses the requests of each key, on the event loop; refusals are counted."""

    def __init__(self, metrics: Metrics, *, clock: Clock = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        # Keyed by the whole Key, limits included: a key with changed limits starts full.
        self._buckets: dict[Key, _KeyBuckets] = {}

    async def admit(self, key: Key) -> None:
        """Count one request of a key; raises QuotaExceeded if a limit is used up."""
        buckets = self._buckets_of(key)
        if buckets.requests and (seconds := buckets.requests.seconds_until(1)):
            raise self._exceeded(key, f"{key.requests_per_minute} requests", seconds)
        if buckets.tokens and (seconds := buckets.tokens.seconds_until(0)):
            raise self._exceeded(key, f"{key.tokens_per_minute} tokens", seconds)
        if buckets.requests:
            buckets.requests.take(1)

    async def charge(self, key: Key, tokens: int) -> None:
        buckets = self._buckets_of(key)
        if buckets.tokens:
            buckets.tokens.take(tokens)

    def _buckets_of(self, key: Key) -> _KeyBuckets:
        if key not in self._buckets:
            self._buckets[key] = _KeyBuckets(key, self._clock)
        return self._buckets[key]

    def _exceeded(self, key: Key, limit: str, wait_seconds: float) -> QuotaExceeded:
        self._metrics.rejected.labels("quota").inc()
        seconds = max(1, math.ceil(wait_seconds))
        return QuotaExceeded(
            f"The key {key.name} has used up its limit of {limit} per minute."
            f" Send the request again in {seconds} s.",
            retry_after_seconds=seconds,
        )


class RemoteLimiter:
    """The limits of keys as the engine process keeps them, for all HTTP processes together.

    ``call`` asks it a question and raises its refusal.
    """

    def __init__(self, call: Callable[[Any], Awaitable[Any]]) -> None:
        self._call = call

    async def admit(self, key: Key) -> None:
        """`RateLimiter.admit`; a key without limits needs no question."""
        if key.requests_per_minute or key.tokens_per_minute:
            await self._call(["admit", _as_json(key)])

    async def charge(self, key: Key, tokens: int) -> None:
        """`RateLimiter.charge`; a key without a limit of tokens needs no question."""
        if key.tokens_per_minute:
            await self._call(["charge", _as_json(key), tokens])


def _as_json(key: Key) -> list[Any]:
    digest, *rest = astuple(key)
    return [digest.hex(), *rest]


def key_of(fields: list[Any]) -> Key:
    """The key that `RemoteLimiter` sent."""
    digest, *rest = fields
    return Key(bytes.fromhex(digest), *rest)
