"""What a key may ask for in a minute: token buckets, one for requests and one for tokens.

A bucket fills up evenly and holds at most what a minute brings, so a client that was quiet may send
a minute's worth at once. The tokens of a request are known only when it is answered: they are
charged then, the balance may fall below zero, and while it is there nothing more is let in.
"""

import math
import time
from collections.abc import Callable

from service.access.api_keys import Key
from service.errors import QuotaExceeded
from service.metrics import Metrics

Clock = Callable[[], float]


class Bucket:
    """An allowance of ``per_minute``, which is there in full at first."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._balance = float(per_minute)
        self._filled = clock()

    def take(self, amount: int) -> None:
        """Take an amount, whether it is there or not."""
        self._fill()
        self._balance -= amount

    def seconds_until(self, balance: int) -> float:
        """How long it takes until the balance is this, 0 when it is already."""
        self._fill()
        return max(0.0, (balance - self._balance) * 60 / self._per_minute)

    def _fill(self) -> None:
        now = self._clock()
        gained = (now - self._filled) * self._per_minute / 60
        self._balance = min(self._balance + gained, self._per_minute)
        self._filled = now


class _Allowance:
    """The buckets of one key; None where it has no limit."""

    def __init__(self, key: Key, clock: Clock) -> None:
        self.requests = Bucket(key.requests_per_minute, clock) if key.requests_per_minute else None
        self.tokens = Bucket(key.tokens_per_minute, clock) if key.tokens_per_minute else None


class Quotas:
    """The allowances of all keys, on the event loop. What is refused is counted."""

    def __init__(self, metrics: Metrics, *, clock: Clock = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        # By the whole key: one whose limits were changed begins anew.
        self._allowances: dict[Key, _Allowance] = {}

    def admit(self, key: Key) -> None:
        """Count a request, or raise QuotaExceeded."""
        allowance = self._of(key)
        if allowance.requests and (seconds := allowance.requests.seconds_until(1)):
            raise self._exceeded(key, f"{key.requests_per_minute} requests", seconds)
        if allowance.tokens and (seconds := allowance.tokens.seconds_until(0)):
            raise self._exceeded(key, f"{key.tokens_per_minute} tokens", seconds)
        if allowance.requests:
            allowance.requests.take(1)

    def charge(self, key: Key, tokens: int) -> None:
        """Count the tokens of a request that was answered."""
        allowance = self._of(key)
        if allowance.tokens:
            allowance.tokens.take(tokens)

    def _of(self, key: Key) -> _Allowance:
        if key not in self._allowances:
            self._allowances[key] = _Allowance(key, self._clock)
        return self._allowances[key]

    def _exceeded(self, key: Key, limit: str, wait_seconds: float) -> QuotaExceeded:
        self._metrics.rejected.labels("quota").inc()
        seconds = max(1, math.ceil(wait_seconds))
        return QuotaExceeded(
            f"The key {key.name} has used up its limit of {limit} per minute."
            f" Send the request again in {seconds} s.",
            retry_after_seconds=seconds,
        )
