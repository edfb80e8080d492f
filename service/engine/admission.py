"""Who may come in: limits checked before work is spent, and the answers of those refused."""

import math
from collections.abc import Sequence, Sized
from typing import Literal

from service.engine.batcher import Batcher, PendingRequest
from service.errors import EmptyInput, NotReady, Overloaded, PayloadTooLarge
from service.metrics import Metrics
from service.settings import Settings

State = Literal["starting", "serving", "draining", "failed"]

REFUSALS: dict[State, str] = {
    "starting": "The model is being loaded. Send the request again in a moment.",
    "draining": "The service is shutting down. Send the request to another instance.",
    "failed": "The inference engine has failed. Send the request to another instance.",
}

MAX_RETRY_AFTER_SECONDS = 60

# Weight of the past in the measured rate, per batch: about the last ten batches count.
RATE_MEMORY = 0.9


class ThroughputEstimate:
    """Tokens per second over the last batches, the latest weighing most."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Counts one batch."""
        self._tokens = RATE_MEMORY * self._tokens + tokens
        self._seconds = RATE_MEMORY * self._seconds + seconds

    def seconds_for(self, tokens: int) -> float:
        """Returns how long these tokens will take, 0 when nothing was measured yet."""
        return tokens * self._seconds / self._tokens if self._tokens else 0.0


class Admission:
    """The limits of the engine. What it refuses it counts, and tells when to come again."""

    def __init__(
        self, settings: Settings, metrics: Metrics, batcher: Batcher, throughput: ThroughputEstimate
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._batcher = batcher
        self._throughput = throughput

    def check_texts(self, texts: Sequence[str | Sequence[int]]) -> None:
        """Raises EmptyInput or PayloadTooLarge."""
        limit = self._settings.max_client_batch_size
        if not texts:
            raise EmptyInput("There is nothing to embed. Send at least one text.")
        if len(texts) > limit:
            raise PayloadTooLarge(
                f"The request has {len(texts)} texts; the limit is {limit}. Split it."
            )
        refuse_empty(texts)

    def check_room(self, state: State, requests_in_flight: int) -> None:
        """Raises NotReady or Overloaded for a request that could not be taken anyway."""
        if state != "serving":
            reason = "draining" if state == "draining" else "not_ready"
            self._metrics.rejected.labels(reason).inc()
            raise not_ready(state)
        limit = self._settings.max_concurrent_requests
        if requests_in_flight >= limit:
            raise self._overloaded("concurrency", f"{limit} requests are being worked on")
        if self._batcher.is_full:
            raise self._queue_full()

    def submit(self, request: PendingRequest) -> None:
        """Reserves room for all tokens of the request and queues it, or raises Overloaded."""
        if not self._batcher.submit(request):
            raise self._queue_full()

    def _queue_full(self) -> Overloaded:
        waiting, limit = self._batcher.tokens, self._settings.max_queue_tokens
        return self._overloaded("queue_full", f"{waiting} tokens are waiting, of {limit} that may")

    def _overloaded(self, reason: str, what: str) -> Overloaded:
        """The error whose Retry-After is the time that the waiting tokens will take."""
        self._metrics.rejected.labels(reason).inc()
        wait = math.ceil(self._throughput.seconds_for(self._batcher.tokens))
        seconds = min(max(wait, 1), MAX_RETRY_AFTER_SECONDS)
        message = f"The service is busy: {what}. Send the request again in {seconds} s."
        return Overloaded(message, retry_after_seconds=seconds)


def not_ready(state: State) -> NotReady:
    """The error for a request that comes while the engine does not serve."""
    return NotReady(REFUSALS[state], retry_after_seconds=1)


def refuse_empty(items: Sequence[Sized]) -> None:
    """Raises EmptyInput when a text has no characters, or after tokenising no tokens."""
    if not all(items):
        index = next(index for index, item in enumerate(items) if not item)
        raise EmptyInput(f"Input {index} is empty. Send a text, or leave it out.")
