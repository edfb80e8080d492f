"""What every engine does of a request: admission, tokenising, windows, deadlines.

Where the texts then wait and run is up to the engine: `service.engine.engine` has the queue and the
model in this process. The path of a request to embed: check the limits that need no tokens,
tokenise, reserve room in the queue, wait. A request for token spans or decoding ends after
tokenising. Each request holds a timeout scope of `service.engine.deadlines` until its answer, which
ends it at its deadline, and when the engine aborts, also while a thread hangs.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TypeVar

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.token_spans import TokenSpan
from s2sent.service.engine.admission import Admission, SecondsToEmpty, TextQueue, not_ready
from s2sent.service.engine.deadlines import InFlightRequests
from s2sent.service.engine.inference.parallelism import Parallelism
from s2sent.service.engine.submission import Part, Submission
from s2sent.service.engine.tokenization import (
    MAX_TOKENIZER_THREADS,
    TokenizationThreads,
    Tokenized,
    decoded,
)
from s2sent.service.engine.types import EmbedRequest, EmbedResult, ServedModel
from s2sent.service.lanes import Lane
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics

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
        self._admission = Admission(settings, metrics, queue, seconds_to_empty, in_flight)
        self._submission = Submission(self._admission, queue, metrics)

    @property
    def artifact(self) -> Artifact:
        """The artifact that is served. Like all the model's properties, NotReady before loading."""
        artifact = self._loaded.artifact
        if artifact is None:
            raise not_ready("starting")
        return artifact

    @property
    def provider(self) -> str:
        """ONNX Runtime's name of the execution provider the encoder runs on."""
        return self._loaded.provider

    @property
    def has_block_weights(self) -> bool:
        """Whether `embed` can give the selector's block weights."""
        return self._loaded.has_block_weights

    @property
    def unknown_id(self) -> int | None:
        """The token of what the vocabulary lacks; None where it lacks nothing."""
        return self._loaded.tokenizer.unknown_id

    @property
    def threads(self) -> int:
        """Threads of an exclusive run."""
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
        self._admission.check_embedding(
            request.all_texts(), request.lane, allow_empty=request.skip_failed
        )
        parts: list[Part] = []
        try:
            async with self._admission.track(
                request.timeout_seconds, stage=lambda: self._submission.stage_of(parts)
            ):
                at_depths = await self._tokenized(request)
                row_length = partial(self._loaded.row_length, weights=request.weights)
                parts = self._submission.submit(
                    at_depths,
                    row_length,
                    lane=request.lane,
                    weights=request.weights,
                    now=self._clock(),
                )
                for part in parts:
                    await part.pending.future
        finally:
            self._submission.drop(parts)
        return self._submission.finish(parts, counted=request.windows is not None)

    async def _tokenized(self, request: EmbedRequest) -> list[tuple[Tokenized, int | None]]:
        """The texts as tokens, and the others after them, each with its depth."""
        token_ids = partial(
            self._tokenization.token_ids,
            self._loaded.tokenizer,
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

    async def tokenize(
        self,
        texts: Sequence[str],
        convert: Callable[[list[TokenSpan]], Result],
        *,
        add_special_tokens: bool = True,
        prompt: str = "",
        timeout_seconds: float | None = None,
    ) -> list[Result]:
        """Split each text into tokens, however long it is; places count ``prompt``.

        ``convert`` is called in a thread with the spans of each text, and what it returns is the
        answer, so that the spans of many texts are never in memory at one time.
        Raises EmptyInput, PayloadTooLarge, Overloaded, NotReady or DeadlineExceeded.
        """
        prompted = [prompt + text for text in texts] if prompt else texts
        self._admission.check_tokenizing(prompted)
        tokenizer = self._loaded.tokenizer

        def tokens_of(text: str) -> Result:
            return convert(tokenizer.token_spans(text, add_special_tokens=add_special_tokens))

        async with self._admission.track(timeout_seconds):
            return await self._tokenization.in_slices(prompted, tokens_of)

    async def decode(
        self,
        ids: Sequence[Sequence[int]],
        *,
        skip_special_tokens: bool = True,
        timeout_seconds: float | None = None,
    ) -> list[str]:
        """The text of each list of token ids.

        Raises InvalidInput for an id outside the vocabulary, and what `tokenize` raises.
        """
        self._admission.check_tokenizing(ids)
        function = partial(decoded, self._loaded.tokenizer, skip_special_tokens=skip_special_tokens)
        async with self._admission.track(timeout_seconds):
            return await self._tokenization.in_slices(ids, function)

    async def tokens(
        self, ids: Sequence[Sequence[int]], *, timeout_seconds: float | None = None
    ) -> list[list[str]]:
        """The tokens of each list of ids of this vocabulary, as the vocabulary spells them."""
        async with self._admission.track(timeout_seconds):
            return await self._tokenization.in_slices(ids, self._loaded.tokenizer.tokens)

    def track(
        self, timeout_seconds: float, *, stage: Callable[[], str]
    ) -> AbstractAsyncContextManager[None]:
        """Count what is done with a result as a request in flight, which a drain waits for.

        Raises DeadlineExceeded after ``timeout_seconds``, and NotReady when the engine aborts.
        """
        return self._admission.track(timeout_seconds, stage=stage)

    async def _settled(self, timeout_seconds: float) -> bool:
        """Refuse new work and wait for what was accepted; returns whether everything was finished.

        What is not finished after ``timeout_seconds`` is answered with NotReady.
        """
        if self._admission.state != "failed":
            self._admission.state = "draining"
        in_flight = self._admission.in_flight
        finished = await in_flight.is_idle_within(timeout_seconds)
        if not finished:
            self._abort_in_flight()
            await in_flight.is_idle_within(STOP_TIMEOUT_SECONDS)
        return finished

    def _abort_in_flight(self) -> None:
        self._admission.in_flight.abort(lambda: not_ready(self._admission.state))

    @property
    def _loaded(self) -> ServedModel:
        if self._model is None:
            raise not_ready("starting")
        return self._model
