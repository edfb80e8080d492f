"""What every engine does of a request: admission, tokenising, windows, deadlines.

Where the texts then wait and run is up to the engine: `service.engine.engine` has the queue and the
model in this process. The path of a request to embed: check the limits that need no tokens,
tokenise, reserve room in the queue, wait. A request for token spans or decoding ends after
tokenising. Each request holds a timeout scope of `service.engine.deadlines` until its answer, which
ends it at its deadline, and when the engine aborts, also while a thread hangs.
"""

import time
from collections.abc import Callable, Collection, Sequence, Sized
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TypeVar

from s2sent.model.artifact.reader import Artifact
from s2sent.service.engine.admission import Admission, SecondsToEmpty, TextQueue, not_ready
from s2sent.service.engine.deadlines import InFlightRequests
from s2sent.service.engine.inference.parallelism import Parallelism
from s2sent.service.engine.parts import Part, joined, part_of, result_of
from s2sent.service.engine.tokenization import MAX_TOKENIZER_THREADS, TokenizationThreads, Tokenized
from s2sent.service.engine.types import EmbedRequest, EmbedResult, ServedModel, TextTokenizer
from s2sent.service.lanes import Lane
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics

Item = TypeVar("Item", bound=Sized)
Result = TypeVar("Result")

STOP_TIMEOUT_SECONDS = 1.0  # for the threads to end when a run outlives the drain


class BaseEngine:
    """Admits and tokenises texts for many callers at one time, on one event loop.

    ``queue`` takes what is tokenised; ``seconds_to_empty`` is as of `Admission`.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        queue: TextQueue,
        seconds_to_empty: SecondsToEmpty,
        in_flight: InFlightRequests | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parallelism = Parallelism.of(settings)
        self._settings = settings
        self._metrics = metrics
        self._model: ServedModel | None = None
        self._clock = clock
        self._tokenization = TokenizationThreads(self.tokenizer_threads, clock)
        if in_flight is None:
            in_flight = InFlightRequests(metrics, settings.request_timeout_seconds)
        self._in_flight = in_flight
        self._queue = queue
        self._admission = Admission(settings, metrics, queue, seconds_to_empty, in_flight)

    @property
    def model(self) -> ServedModel:
        """The model that is served; raises NotReady before it is loaded."""
        if self._model is None:
            raise not_ready("starting")
        return self._model

    @property
    def artifact(self) -> Artifact:
        """The model's artifact; raises NotReady before it is loaded."""
        artifact = self.model.artifact
        if artifact is None:
            raise not_ready("starting")
        return artifact

    @property
    def threads(self) -> int:
        """Threads of a run that has the cores to itself."""
        return self._parallelism.threads

    @property
    def tokenizer_threads(self) -> int:
        """Threads of the pool that tokenises texts to embed."""
        return min(self.threads, MAX_TOKENIZER_THREADS)

    def check_room(self, lanes: Collection[Lane]) -> None:
        """Raise NotReady or Overloaded where a request would be refused whatever it says.

        ``lanes`` are those that it may wait in; none for one that does not wait.
        """
        self._admission.check_room(lanes)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """The embeddings of texts; cancelling drops those that wait.

        Raises EmptyInput, InvalidInput, PayloadTooLarge, Overloaded, NotReady, DeadlineExceeded or
        InferenceFailed.
        """
        self._admission.check_room([request.lane])
        parts: list[Part] = []
        try:
            async with self.track(request.timeout_seconds, stage=lambda: self._stage_of(parts)):
                parts = self._submit(request, await self._tokenized(request))
                for part in parts:
                    await part.pending.future
        finally:
            self._drop(parts)
        results = [result_of(part, counted=request.windows is not None) for part in parts]
        for result in results:
            self._metrics.deferred.add(self._observe, result, request.lane)
        return joined(results)

    async def _tokenized(self, request: EmbedRequest) -> list[tuple[Tokenized, int | None]]:
        """The texts as tokens, and the others after them, each with its depth."""
        token_ids = partial(
            self._tokenization.token_ids,
            self.model.tokenizer,
            truncate=request.truncate,
            truncation_direction=request.truncation_direction,
            windows=request.windows,
        )
        rows = await token_ids(
            request.texts, prompt=request.prompt, skip_failed=request.skip_failed
        )
        at_depths = [(rows, request.depth)]
        if others := request.others:
            rows = await token_ids(others.texts, prompt=others.prompt, first=len(request.texts))
            at_depths.append((rows, others.depth))
        return at_depths

    def _submit(
        self, request: EmbedRequest, at_depths: Sequence[tuple[Tokenized, int | None]]
    ) -> list[Part]:
        """Queue all texts of a request or none; raises PayloadTooLarge or Overloaded."""
        self._admission.check_windows([row for tokens, _ in at_depths for row in tokens.rows])
        row_length, now = partial(self.model.row_length, weights=request.weights), self._clock()
        parts = [part_of(tokens, request, at, row_length(at), now) for tokens, at in at_depths]
        self._admission.submit([part.pending for part in parts])
        return parts

    def _stage_of(self, parts: Sequence[Part]) -> str:
        """How far a request is that ends now; without parts, its texts are being tokenised."""
        if not parts:
            return "tokenize"
        started = any(self._queue.has_started(part.pending) for part in parts)
        return "inference" if started else "queue"

    def _drop(self, parts: Sequence[Part]) -> None:
        """Remove the texts of the parts that wait: nobody waits for their futures any more."""
        for _, pending in parts:
            self._queue.drop(pending)
            if not pending.future.cancel() and not pending.future.cancelled():
                pending.future.exception()  # read, also where another part failed first

    def _observe(self, result: EmbedResult, lane: Lane) -> None:
        self._metrics.tokenize_duration.observe(result.tokenize_seconds)
        self._metrics.queue_duration[lane].observe(result.queue_seconds)
        self._metrics.inference_duration.observe(result.inference_seconds)
        if any(result.truncated):
            self._metrics.truncated_texts.inc(sum(result.truncated))

    async def apply_tokenizer(
        self,
        function: Callable[[TextTokenizer, Item], Result],
        items: Sequence[Item],
        *,
        timeout_seconds: float | None = None,
        admitted: bool = False,
    ) -> list[Result]:
        """``function`` of the tokenizer and each of the texts, or lists of token ids, in a thread.

        What it returns is the answer, so that the spans of many texts are never in memory at one
        time. ``admitted`` says that this is a part of a request that was admitted before. Raises
        PayloadTooLarge, Overloaded, NotReady, DeadlineExceeded and what the function raises.
        """
        if not admitted:
            self._admission.check_tokenizing(items)
        work = partial(function, self.model.tokenizer)
        async with self.track(timeout_seconds, stage=lambda: "tokenize"):
            return await self._tokenization.in_slices(items, work)

    def track(
        self, timeout_seconds: float | None, *, stage: Callable[[], str]
    ) -> AbstractAsyncContextManager[None]:
        """Count what is done meanwhile as a request in flight, which a drain waits for.

        Raises DeadlineExceeded after ``timeout_seconds``, by default the setting
        ``request_timeout_seconds``, and NotReady when the engine aborts.
        """
        return self._in_flight.track(timeout_seconds, stage=stage)

    async def _settled(self, timeout_seconds: float) -> bool:
        """Refuse new work and wait for what was accepted; returns whether everything was finished.

        What is not finished after ``timeout_seconds`` is answered with NotReady.
        """
        if self._admission.state != "failed":
            self._admission.state = "draining"
        finished = await self._in_flight.is_idle_within(timeout_seconds)
        if not finished:
            self._abort_in_flight()
            await self._in_flight.is_idle_within(STOP_TIMEOUT_SECONDS)
        return finished

    def _abort_in_flight(self) -> None:
        self._in_flight.abort(lambda: not_ready(self._admission.state))
