"""Admission control: the limits checked before work is spent on a request, and the refusals."""

import math
from collections.abc import Collection, Sequence, Sized
from dataclasses import dataclass, field
from typing import Literal, Protocol

from s2sent.model.runtime.tokenizer import TokenizedText
from s2sent.service.engine.deadlines import InFlightRequests
from s2sent.service.engine.inference.fair_queue import PendingRequest
from s2sent.service.errors import EmptyInput, NotReady, Overloaded, PayloadTooLarge
from s2sent.service.lanes import Lane
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics

State = Literal["starting", "serving", "draining", "failed"]

REFUSALS: dict[State, str] = {
    "starting": "The model is being loaded. Send the request again in a moment.",
    "draining": "The service is shutting down. Send the request to another instance.",
    "failed": "The inference engine has failed. Send the request to another instance.",
}

MAX_RETRY_AFTER_SECONDS = 60

# Of all texts, or lists of ids, of a request for token spans or decoding. A token is some 60 bytes
# of an answer, so that an answer stays below 20 MB.
MAX_CHARACTERS = 262_144


class TextQueue(Protocol):
    """Where texts wait for a batch; `service.engine.inference.batcher.Batcher` has the meaning."""

    def tokens_in(self, lane: Lane) -> int: ...
    def is_full(self, lane: Lane) -> bool: ...
    def submit(self, *parts: PendingRequest) -> bool: ...
    def drop(self, request: PendingRequest) -> None: ...
    def has_started(self, request: PendingRequest) -> bool: ...


class SecondsToEmpty(Protocol):
    """How long what waits in a lane will take, by its share; without a lane, what waits in both."""

    def __call__(self, lane: Lane | None = None, more_tokens: int = 0) -> float: ...


@dataclass
class Admission:
    """The state of the engine and its limits.

    Refusals for lack of room or time are counted and have a Retry-After: `SecondsToEmpty` tells
    how long the waiting tokens take, and so many more after them.
    """

    _settings: Settings
    _metrics: Metrics
    _queue: TextQueue
    _seconds_to_empty: SecondsToEmpty
    _in_flight: InFlightRequests
    state: State = field(default="starting", init=False)

    def check_tokenizing(self, items: Sequence[Sized]) -> None:
        """The checks of a request for token spans or decoding, which does not enter the queue.

        Raises PayloadTooLarge above MAX_CHARACTERS, NotReady or Overloaded.
        """
        characters = sum(map(len, items))
        if characters > MAX_CHARACTERS:
            raise PayloadTooLarge(
                f"The request has {characters} characters or ids; the limit of this route is"
                f" {MAX_CHARACTERS}. Send them in several requests."
            )
        self.check_state()

    def check_windows(self, rows: Sequence[TokenizedText]) -> None:
        """Raises PayloadTooLarge for more windows of texts than a request may have texts."""
        limit = self._settings.max_client_batch_size
        windows = sum(1 + len(row.more) for row in rows)
        if windows > max(limit, len(rows)):
            raise PayloadTooLarge(
                f"The {len(rows)} texts of the request are {windows} windows; the limit is {limit}."
                " Send them in several requests, or let long texts be cut."
            )

    def check_state(self) -> None:
        """Raises NotReady unless the engine serves, and Overloaded above the concurrency limit."""
        if self.state != "serving":
            reason = "draining" if self.state == "draining" else "not_ready"
            self._metrics.rejected.labels(reason).inc()
            raise not_ready(self.state)
        limit = self._settings.max_concurrent_requests
        if len(self._in_flight) >= limit:
            wait = self._seconds_to_empty()
            raise self._overloaded("concurrency", wait, f"{limit} requests are being worked on")

    def check_room(self, lanes: Collection[Lane]) -> None:
        """Raises what `check_state` raises, and Overloaded where every one of the lanes is full.

        ``lanes`` are those that a request may wait in; none for one that does not wait.
        """
        self.check_state()
        refusals = [self._refusal(lane) for lane in lanes]
        if lanes and all(refusals):
            raise self._overloaded("queue_full", *min(filter(None, refusals)))

    def submit(self, parts: Sequence[PendingRequest]) -> None:
        """Queue all tokens of a request's parts.

        Raises Overloaded when they do not fit, or cannot be embedded in the time of a request: an
        empty lane takes any. A part of which nothing has to be embedded is answered.
        """
        waiting = [part for part in parts if part.positions]
        if waiting:
            texts = sum(len(part.positions) for part in waiting)
            few = texts <= max(1, self._settings.interactive_texts)
            lane = waiting[0].lane if few else "bulk"  # of its last text
            tokens = sum(part.tokens for part in waiting)
            refusal = self._refusal(lane, tokens)
            if refusal or not self._queue.submit(*waiting):
                raise self._overloaded("queue_full", *(refusal or self._no_room(lane, tokens)))
        for part in parts:
            if not part.positions:
                part.settle()

    def _refusal(self, lane: Lane, tokens: int = 0) -> tuple[float, str] | None:
        """How long the lane's texts will take, and why no other ``tokens`` may wait; or None."""
        if self._queue.is_full(lane):
            return self._no_room(lane, tokens)
        waiting, limit = self._queue.tokens_in(lane), self._settings.request_timeout_seconds
        if not waiting or (seconds := self._seconds_to_empty(lane, tokens)) <= limit:
            return None
        what = f"{waiting} {lane} tokens are waiting{_asked(tokens)}"
        return self._seconds_to_empty(lane), (
            f"{what}, which takes {seconds:.0f} s, and a request may take {limit:g} s"
        )

    def _no_room(self, lane: Lane, tokens: int) -> tuple[float, str]:
        waiting, limit = self._queue.tokens_in(lane), self._settings.max_queue_tokens
        what = f"{waiting} {lane} tokens are waiting, of {limit} that may{_asked(tokens)}"
        return self._seconds_to_empty(lane), what

    def _overloaded(self, reason: str, wait_seconds: float, what: str) -> Overloaded:
        """The error whose Retry-After is the time that the waiting tokens will take."""
        self._metrics.rejected.labels(reason).inc()
        seconds = min(max(math.ceil(wait_seconds), 1), MAX_RETRY_AFTER_SECONDS)
        message = f"The service is busy: {what}. Send the request again in {seconds} s."
        return Overloaded(message, retry_after_seconds=seconds)


def _asked(tokens: int) -> str:
    return f"; this request has {tokens}" if tokens else ""


def not_ready(state: State) -> NotReady:
    """The error of a request while the engine does not serve."""
    return NotReady(REFUSALS[state], retry_after_seconds=1)


def empty_input(index: int, *, tokenized: bool) -> EmptyInput:
    """The error of the text at ``index``, which has no characters, or no tokens to pool."""
    lack = "has no tokens to pool. Send a longer text" if tokenized else "is empty. Send a text"
    return EmptyInput(f"Input {index} {lack}, or leave it out.")
