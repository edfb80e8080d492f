"""Bounds on what all requests together hold in memory: bodies, and answers not yet sent."""

from s2sent.service.errors import Overloaded
from s2sent.service.telemetry.metrics import Metrics

# What every connection may hold besides: a request is never refused for less.
FREE_BYTES = 65_536
RETRY_AFTER_SECONDS = 1  # bodies and answers come and go faster than the queue


class ByteBudget:
    """Bytes that requests hold together, up to a limit. Used on the event loop only.

    ``what`` and ``setting`` name in a refusal what is held, and its limit.
    """

    def __init__(self, limit: int, metrics: Metrics, *, what: str, setting: str) -> None:
        self.held = 0
        self._limit = limit
        self._metrics = metrics
        self._what = what
        self._setting = setting

    def check(self, more: int) -> None:
        """Raise Overloaded where ``more`` bytes would not fit.

        What is alone always fits, so that no request is refused for ever.
        """
        if self.held and self.held + more > self._limit:
            self._metrics.rejected.labels("memory").inc()
            raise Overloaded(
                f"The service is busy: {self._what} take {self.held} bytes, of {self._limit} that"
                f" they may ({self._setting}). Send the request again in {RETRY_AFTER_SECONDS} s.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )


class Holding:
    """What one request holds of a budget, until it is released."""

    __slots__ = ("_budget", "bytes")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.bytes = 0

    def grow_to(self, count: int) -> None:
        """Hold ``count`` bytes in all, if that is more than before; raises Overloaded."""
        if count > max(self.bytes, FREE_BYTES):
            self.release()
            self._budget.check(count)
            self._budget.held += count
            self.bytes = count

    def release(self) -> None:
        """Hold nothing any more. Releasing again has no effect."""
        self._budget.held -= self.bytes
        self.bytes = 0
