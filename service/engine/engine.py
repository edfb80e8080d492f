"""Async embedding engine: admission, tokenisation, batching, deadlines, shutdown.

The path of a request to embed: check the limits that need no tokens, tokenise, reserve room in the
queue, wait in the batcher, run in an inference thread. A request for token spans or decoding ends
after tokenising. Each request holds a timeout scope of `service.engine.deadlines` until its answer,
which ends it at its deadline, and when the engine aborts, also while a thread hangs.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TypeVar

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.token_spans import TokenSpan
from s2sent.model.runtime.tokenizer import TruncationDirection
from s2sent.model.runtime.windows import Windows
from s2sent.service.engine.admission import Admission, not_ready
from s2sent.service.engine.background import in_background
from s2sent.service.engine.inference.batcher import Batcher
from s2sent.service.engine.inference.fair_queue import BatchLimits
from s2sent.service.engine.inference.model import LoadedModel
from s2sent.service.engine.inference.parallelism import Parallelism
from s2sent.service.engine.inference.throughput import ThroughputEstimate
from s2sent.service.engine.inference.workers import InferenceWorkers
from s2sent.service.engine.submission import Part, Submission, stage_of
from s2sent.service.engine.tokenization import MAX_TOKENIZER_THREADS, TokenizationThreads, decoded
from s2sent.service.engine.types import EmbedResult, OtherTexts, Readiness
from s2sent.service.lanes import Lane
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics

Result = TypeVar("Result")

STOP_TIMEOUT_SECONDS = 1.0  # for the threads to end when a run outlives the drain


class Engine:
    """Embeds and tokenises texts for many callers at one time, on one event loop.

    ``model`` is a model that is being opened; without it `start` opens the one the settings name.
    ``on_fatal`` is called on the loop, with a sentence, when the engine cannot go on and the
    process should end.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        model: Future[LoadedModel] | None = None,
        on_fatal: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parallelism = Parallelism.of(settings)
        self._settings = settings
        self._metrics = metrics
        self._opening = model
        self._model: LoadedModel | None = None
        self._on_fatal = on_fatal
        self._clock = clock
        self._failure = "engine could not start"  # the reason while the state is "failed"
        self._tokenization = TokenizationThreads(self.tokenizer_threads, clock)
        self._workers: InferenceWorkers | None = None
        limits = BatchLimits.of(settings)
        self._throughput = ThroughputEstimate(limits)
        self._batcher = Batcher(
            limits,
            max_queue_tokens=settings.max_queue_tokens,
            bulk_share=settings.bulk_share,
            num_workers=self._parallelism.concurrent_runs,
            call_soon=lambda wake: asyncio.get_running_loop().call_soon(wake),
            clock=clock,
        )
        self._admission = Admission(settings, metrics, self._batcher, self._throughput)
        self._submission = Submission(self._admission, self._batcher, metrics, settings.cache_bytes)
        self._publish_gauges()

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
        return self._loaded.encoder.provider

    @property
    def has_block_weights(self) -> bool:
        """Whether `embed` can give the selector's block weights."""
        return self._loaded.encoder.has_block_weights

    @property
    def threads(self) -> int:
        """Threads of an exclusive run."""
        return self._parallelism.threads

    @property
    def tokenizer_threads(self) -> int:
        """Threads of the pool that tokenises texts to embed."""
        return min(self.threads, MAX_TOKENIZER_THREADS)

    async def start(self) -> None:
        """Load, warm up and verify the model off the loop, then start to take batches.

        Raises ArtifactError, ProviderUnavailable or EngineStartFailed.
        """
        since = self._clock()
        try:
            self._model = model = await self._load()
        except Exception:  # whatever it was, `state` tells it
            if self._admission.state == "starting":
                self._admission.state = "failed"
            raise
        if self._admission.state != "starting":  # drained meanwhile
            return
        self._workers = self._start_workers(model)
        self._admission.state = "serving"
        model.describe(self._metrics)
        self._metrics.model_load_seconds.set(self._clock() - (model.opened_since or since))

    async def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        truncate: bool = True,
        truncation_direction: TruncationDirection = "right",
        prompt: str = "",
        windows: Windows | None = None,
        lane: Lane = "interactive",
        depth: int | None = None,
        others: OtherTexts | None = None,
        weights: bool = False,
        skip_failed: bool = False,
        timeout_seconds: float | None = None,
    ) -> EmbedResult:
        """Embed texts, or lists of token ids, which are taken verbatim.

        With ``windows`` a text that is too long is split and its embedding is the mean of theirs
        (`service.engine.windows`). ``depth``, one of the artifact's, is the last block that is run;
        None runs all. ``others`` follow, by their own depth and prompt. With ``weights`` the
        selector's block weights are given instead. With ``skip_failed``, which takes no ``others``,
        errors of texts are in the result. Raises EmptyInput, InvalidInput, PayloadTooLarge,
        Overloaded, NotReady, DeadlineExceeded or InferenceFailed. Cancelling drops what waits.
        """
        every = [*texts, *others.texts] if others else texts
        self._admission.check_embedding(every, lane, allow_empty=skip_failed)
        parts: list[Part] = []
        try:
            async with self._admission.track(timeout_seconds, stage=lambda: stage_of(parts)):
                token_ids = partial(
                    self._tokenization.token_ids,
                    self._loaded.tokenizer,
                    truncate=truncate,
                    truncation_direction=truncation_direction,
                    windows=windows,
                )
                rows = await token_ids(texts, prompt=prompt, skip_failed=skip_failed)
                at_depths = [(rows, depth)]
                if others:
                    rows = await token_ids(others.texts, prompt=others.prompt, first=len(texts))
                    at_depths.append((rows, others.depth))
                row_length = partial(self._loaded.row_length, weights=weights)
                parts = self._submission.submit(
                    at_depths, row_length, lane=lane, weights=weights, now=self._clock()
                )
                for part in parts:
                    await part.pending.future
        finally:
            self._submission.drop(parts)
        return self._submission.finish(parts, counted=windows is not None)

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

    def readiness(self) -> Readiness:
        """Whether traffic should be sent here. Cheap, and never waits for inference."""
        if self._admission.state == "failed":
            return Readiness(False, self._failure)
        if self._admission.state != "serving" or self._workers is None:
            return Readiness(False, self._admission.state)
        fault = self._workers.fault_now(self._settings.stall_timeout_seconds)
        return Readiness(False, fault) if fault else Readiness(True, "ready")

    async def drain(self, timeout_seconds: float) -> bool:
        """Refuse new work, finish what was accepted, then stop the threads.

        What is not finished after ``timeout_seconds`` is answered with NotReady. Returns whether
        everything was finished. May be called again, or before `start`.
        """
        if self._admission.state != "failed":
            self._admission.state = "draining"
        in_flight = self._admission.in_flight
        finished = await in_flight.is_idle_within(timeout_seconds)
        if not finished:
            self._abort_in_flight()
            await in_flight.is_idle_within(STOP_TIMEOUT_SECONDS)
        self._batcher.close()
        self._tokenization.shut_down()
        if self._workers:
            await self._workers.ended(STOP_TIMEOUT_SECONDS)
        return finished

    @property
    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise not_ready("starting")
        return self._model

    async def _load(self) -> LoadedModel:
        opening = self._opening or LoadedModel.open_in_background(self._settings)
        model = self._model = await asyncio.wrap_future(opening)
        warm_up = in_background(partial(model.warm_up, self._settings), name="warm-up")
        await asyncio.wrap_future(warm_up)
        return model

    def _start_workers(self, model: LoadedModel) -> InferenceWorkers:
        self._batcher.limits.packed = bool(model.artifact and model.artifact.manifest.packed)
        workers = InferenceWorkers(
            model,
            self._batcher,
            self._metrics,
            self._throughput,
            count=self._parallelism.concurrent_runs,
            verify=lambda: model.check_canary(workers.run),
            on_fatal=self._on_workers_lost,
            clock=self._clock,
        )
        workers.start()
        return workers

    def _publish_gauges(self) -> None:
        self._metrics.engine_threads.set(self.threads)
        self._metrics.concurrent_runs.set(self._parallelism.concurrent_runs)
        self._metrics.watch(
            texts=self._batcher.texts_in,
            tokens=self._batcher.tokens_in,
            oldest_seconds=self._batcher.oldest_seconds,
            ready=lambda: self.readiness().ready,
            cache_bytes=lambda: self._submission.cache_bytes,
        )

    def _on_workers_lost(self, reason: str) -> None:
        """The inference threads are lost for good: no request may wait for them."""
        self._admission.state, self._failure = "failed", reason
        self._abort_in_flight()
        if self._on_fatal:
            self._on_fatal(reason)

    def _abort_in_flight(self) -> None:
        self._admission.in_flight.abort(lambda: not_ready(self._admission.state))
