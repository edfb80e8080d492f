"""Admission control: the limits checked before work is spent on a request, and the refusals."""

import math
from collections.abc import Callable, Collection, Sequence, Sized
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from s2sent.model.runtime.tokenizer import TokenizedText
from s2sent.service.engine.deadlines import InFlightRequests
from s2sent.service.engine.inference.fair_queue import PendingRequest
from s2sent.service.errors import (
    EmptyInput,
    NotReady,
    Overloaded,
    PayloadTooLarge,
    check_text_count,
)
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

    @property
    def tokens(self) -> int: ...
    def tokens_in(self, lane: Lane) -> int: ...
    def is_full(self, lane: Lane) -> bool: ...
    def submit(self, *parts: PendingRequest) -> bool: ...
    def drop(self, request: PendingRequest) -> None: ...
    def has_started(self, request: PendingRequest) -> bool: ...


class Admission:
    """The state of the engine, its limits, and the requests that were admitted.

    Refusals for lack of room are counted and have a Retry-After: ``seconds_for`` tells how long
    so many tokens take.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        queue: TextQueue,
        seconds_for: Callable[[int], float],
        in_flight: InFlightRequests,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._queue = queue
        self._seconds_for = seconds_for
        self.state: State = "starting"
        self.in_flight = in_flight

    def track(
        self, timeout_seconds: float | None, *, stage: Callable[[], str] = lambda: "tokenize"
    ) -> AbstractAsyncContextManager[None]:
        """Count a request as in flight while it is worked on; see `InFlightRequests.track`.

        None stands for the setting ``request_timeout_seconds``.
        """
        if timeout_seconds is None:
            timeout_seconds = self._settings.request_timeout_seconds
        return self.in_flight.track(timeout_seconds, stage=stage)

    def check_texts(self, texts: Sequence[Sized], *, allow_empty: bool = False) -> None:
        """Raises PayloadTooLarge, or EmptyInput for no texts or, by default, an empty one."""
        if not texts:
            raise EmptyInput("There is nothing to embed. Send at least one text.")
        check_text_count(len(texts), self._settings.max_client_batch_size)
        if not allow_empty:
            refuse_empty(texts)

    def check_embedding(
        self, texts: Sequence[Sized], lane: Lane, *, allow_empty: bool = False
    ) -> None:
        """The checks of a request to embed; raises what `check_texts` and the others raise."""
        self.check_texts(texts, allow_empty=allow_empty)
        self.check_state()
        self.check_queue(lane)

    def check_tokenizing(self, items: Sequence[Sized]) -> None:
        """The checks of a request for token spans or decoding, which does not enter the queue.

        Raises EmptyInput, PayloadTooLarge above MAX_CHARACTERS, NotReady or Overloaded.
        """
        self.check_texts(items)
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
        if len(self.in_flight) >= limit:
            raise self._overloaded("concurrency", f"{limit} requests are being worked on")

    def check_room(self, lanes: Collection[Lane]) -> None:
        """What refuses a request to a route whatever it says; ``lanes`` are those it may be in.

        Raises what `check_state` raises, and Overloaded where every one of the lanes is full.
        """
        self.check_state()
        if lanes and all(map(self._queue.is_full, lanes)):
            raise self._queue_full(min(lanes, key=self._queue.tokens_in))

    def check_queue(self, lane: Lane) -> None:
        """Raises Overloaded when the lane is full already, before anything is tokenised."""
        if self._queue.is_full(lane):
            raise self._queue_full(lane)

    def submit(self, parts: Sequence[PendingRequest]) -> None:
        """Queue all tokens of a request's parts; raises Overloaded when they do not fit.

        A part of which nothing has to be embedded is answered.
        """
        waiting = [part for part in parts if part.positions]
        if waiting and not self._queue.submit(*waiting):
            tokens = sum(part.tokens for part in waiting)
            raise self._queue_full(parts[0].lane, f"; this request has {tokens}")
        for part in parts:
            if not part.positions:
                part.future.set_result(None)

    def _queue_full(self, lane: Lane, asked: str = "") -> Overloaded:
        waiting, limit = self._queue.tokens_in(lane), self._settings.max_queue_tokens
        what = f"{waiting} {lane} tokens are waiting, of {limit} that may{asked}"
        return self._overloaded("queue_full", what)

    def _overloaded(self, reason: str, what: str) -> Overloaded:
        """The error whose Retry-After is the time that the waiting tokens will take."""
        self._metrics.rejected.labels(reason).inc()
        wait = math.ceil(self._seconds_for(self._queue.tokens))
        seconds = min(max(wait, 1), MAX_RETRY_AFTER_SECONDS)
        message = f"The service is busy: {what}. Send the request again in {seconds} s."
        return Overloaded(message, retry_after_seconds=seconds)


def not_ready(state: State) -> NotReady:
    """The error of a request while the engine does not serve."""
    return NotReady(REFUSALS[state], retry_after_seconds=1)


def refuse_empty(items: Sequence[Sized], *, first: int = 0) -> None:
    """Raises EmptyInput when a text has no characters, or after tokenising no tokens.

    ``first`` is the position of the first item in its request.
    """
    if not all(items):
        index = next(index for index, item in enumerate(items, first) if not item)
        raise empty_input(index)


def empty_input(index: int) -> EmptyInput:
    """The error of the text at ``index``, which has no characters or no tokens."""
    return EmptyInput(f"Input {index} is empty. Send a text, or leave it out.")
