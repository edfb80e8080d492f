"""How fast texts are embedded, measured on the batches that were run."""

from s2sent.service.engine.inference.fair_queue import BatchLimits

# Weight of the past in the measured throughput, per batch: about the last ten batches count.
THROUGHPUT_DECAY = 0.9


class ThroughputEstimate:
    """Seconds per token, as an exponentially weighted mean over the batches.

    A batch counts as its tokens and the fixed cost of its run (`BatchLimits.run_cost_tokens`), so
    that single short texts do not make a queue of full batches look slow.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float, *, fixed_parts: int = 1) -> None:
        """Count one batch, whose fixed cost is ``fixed_parts`` times that of a run."""
        cost = tokens + fixed_parts * self._limits.run_cost_tokens
        self._tokens = THROUGHPUT_DECAY * self._tokens + cost
        self._seconds = THROUGHPUT_DECAY * self._seconds + seconds

    def seconds_for(self, tokens: int) -> float:
        """Return how long these tokens take in full batches; 0 before the first batch."""
        if not self._tokens:
            return 0.0
        runs = -(-tokens // self._limits.max_tokens)
        return (tokens + runs * self._limits.run_cost_tokens) * self._seconds / self._tokens
