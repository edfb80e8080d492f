"""How fast texts are embedded, measured on the batches that were run."""

# Weight of the past in the measured throughput, per batch: about the last ten batches count.
THROUGHPUT_DECAY = 0.9


class ThroughputEstimate:
    """Tokens per second as an exponentially weighted mean over the batches."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count one batch."""
        self._tokens = THROUGHPUT_DECAY * self._tokens + tokens
        self._seconds = THROUGHPUT_DECAY * self._seconds + seconds

    def seconds_for(self, tokens: int) -> float:
        """Return how long these tokens will take; 0 before the first batch."""
        return tokens * self._seconds / self._tokens if self._tokens else 0.0
