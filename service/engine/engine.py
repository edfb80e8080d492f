"""The engine room's door: texts in, vectors out, and for every accepted request an answer.

The path of a request: admission by concurrency -> tokenise, in a small thread pool unless it is
short -> admission by tokens -> wait in the batcher -> run by the inference thread -> one wake-up
of its future. A request is in flight while its coroutine holds a timeout scope, and that scope is
the one thing that ends it early: at its deadline, and when the engine gives up. So a request is
answered also while the inference thread hangs.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from model.artifact.reader import Artifact
from model.runtime.tokenizer import TokenizedText, TruncationDirection, UnusableInput
from service.engine.admission import Admission, State, ThroughputEstimate, not_ready, refuse_empty
from service.engine.batcher import Batcher, PendingRequest
from service.engine.cache import EmbeddingCache
from service.engine.deadlines import InFlightRequests
from service.engine.model import LoadedModel
from service.engine.parallelism import Parallelism
from service.engine.types import EmbedResult, Readiness
from service.engine.workers import InferenceWorkers
from service.errors import DeadlineExceeded, InvalidInput, ServiceError
from service.metrics import Metrics
from service.settings import Settings

Result = TypeVar("Result")

# What a run costs beyond its tokens, in tokens. On a CPU core MiniLM's fixed part of a run takes as
# long as 9 to 12 tokens; for a large GPU, where a run is nearly all fixed part, it is an estimate.
RUN_COST_TOKENS = {"cpu": 12, "gpu": 2048}

MAX_TOKENIZER_THREADS = 4
# Up to here a request is tokenised on the loop: that takes about 0.1 ms, and waking a thread for it
# takes longer on a busy machine. docs/performance.md has what it gained.
INLINE_CHARACTERS = 500
STOP_TIMEOUT_SECONDS = 1.0  # for the thread to end when a run outlives the drain


class Engine:
    """Embeds texts for many callers at one time, on one event loop.

    The model is opened at the start, as the settings say, unless it is being opened already and
    will be in ``model``. ``on_fatal`` is called on the loop, with a sentence, when the engine
    cannot go on and the process should end.
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
        self._state: State = "starting"
        self._failure = "engine could not start"  # said while the state is "failed"
        self._aborted = False  # whoever is still in flight is answered with NotReady
        self._in_flight = InFlightRequests()
        self._throughput = ThroughputEstimate()
        self._pool = ThreadPoolExecutor(self.tokenizer_threads, "tokenize")
        self._worker: InferenceWorkers | None = None
        self._batcher = Batcher(
            max_batch_tokens=settings.max_batch_tokens,
            max_batch_texts=settings.max_batch_texts,
            max_queue_tokens=settings.max_queue_tokens,
            run_cost_tokens=RUN_COST_TOKENS[settings.processor],
            num_workers=self._parallelism.concurrent_runs,
            clock=clock,
        )
        self._cache = EmbeddingCache(settings.cache_bytes) if settings.cache_bytes else None
        self._admission = Admission(settings, metrics, self._batcher, self._throughput)
        metrics.engine_threads.set(self.threads)
        metrics.concurrent_runs.set(self._parallelism.concurrent_runs)
        metrics.watch(
            texts=lambda: self._batcher.texts,
            tokens=lambda: self._batcher.tokens,
            oldest_seconds=self._batcher.oldest_seconds,
            ready=lambda: self.readiness().ready,
            cache_bytes=lambda: 0 if self._cache is None else self._cache.bytes,
        )

    @property
    def artifact(self) -> Artifact:
        """The artifact that is served; like all the properties, NotReady before it is loaded."""
        artifact = self._loaded.artifact
        if artifact is None:
            raise not_ready("starting")
        return artifact

    @property
    def dim(self) -> int:
        """Components of an embedding."""
        return self._loaded.encoder.dim

    @property
    def max_seq_length(self) -> int:
        """Tokens of the longest text that is embedded whole."""
        return self._loaded.encoder.max_seq_length

    @property
    def threads(self) -> int:
        """Threads of a run that is alone."""
        return self._parallelism.threads

    @property
    def tokenizer_threads(self) -> int:
        """Threads of the pool that tokenises texts to embed."""
        return min(self.threads, MAX_TOKENIZER_THREADS)

    @property
    def provider(self) -> str:
        """ONNX Runtime's name of what the encoder runs on."""
        return self._loaded.encoder.provider

    async def start(self) -> None:
        """Loads, warms up and verifies the encoder off the loop, then starts to take batches.

        Raises ArtifactError, ProviderUnavailable or EngineStartFailed.
        """
        since = self._clock()
        try:
            worker = await self._prepare()
        except Exception:
            if self._state == "starting":
                self._state = "failed"
            raise
        if self._state != "starting":  # drained meanwhile
            return
        worker.start()
        self._worker, self._state = worker, "serving"
        self._loaded.describe(self._metrics)
        since = self._loaded.opened_since or since
        self._metrics.model_load_seconds.set(self._clock() - since)

    async def embed(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        truncate: bool = True,
        truncation_direction: TruncationDirection = "right",
        prompt: str = "",
        depth: int | None = None,
        timeout_seconds: float | None = None,
    ) -> EmbedResult:
        """Embeds texts, or rows of token ids, which are taken verbatim.

        ``depth``, one of the artifact's, is the last block that is run; None runs all.
        Raises EmptyInput, InvalidInput, PayloadTooLarge, Overloaded, NotReady, DeadlineExceeded or
        InferenceFailed. Cancelling the coroutine drops what of it still waits.
        """
        self._admission.check_texts(texts)
        self._admission.check_room(self._state, len(self._in_flight))
        limit = (
            self._settings.request_timeout_seconds if timeout_seconds is None else timeout_seconds
        )
        request: PendingRequest | None = None
        started = self._clock()
        try:
            async with self._in_flight.track(limit):
                rows = await self._tokenize(
                    texts,
                    prompt=prompt,
                    truncate=truncate,
                    truncation_direction=truncation_direction,
                )
                tokenized = self._clock()
                request = self._submit(rows, depth, tokenized)
                await request.future
                self._keep(request)
        except TimeoutError:
            raise self._out_of_time(request) from None
        except asyncio.CancelledError:
            self._metrics.cancelled.labels(_stage(request)).inc()
            raise
        finally:
            if request:
                self._batcher.drop(request)
        return self._result(request, rows, tokenized - started)

    def readiness(self) -> Readiness:
        """Whether traffic should be sent here. Cheap, and never waits for inference."""
        if self._state == "failed":
            return Readiness(False, self._failure)
        if self._state != "serving" or self._worker is None:
            return Readiness(False, self._state)
        if self._worker.fault:
            return Readiness(False, self._worker.fault)
        running = self._worker.running_seconds()
        if running > self._settings.stall_timeout_seconds:
            return Readiness(False, f"batch running for {running:.0f} s")
        return Readiness(True, "ready")

    async def drain(self, timeout_seconds: float) -> bool:
        """Refuses new work, finishes what was accepted, then stops the inference thread.

        What is not finished after ``timeout_seconds`` is answered with NotReady. Returns whether
        everything was finished and the thread has ended. May be called again, or before `start`.
        """
        if self._state != "failed":
            self._state = "draining"
        finished = await self._in_flight.is_idle_within(timeout_seconds)
        if not finished:
            self._abort_in_flight()
            await self._in_flight.is_idle_within(STOP_TIMEOUT_SECONDS)
        self._batcher.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        ended = self._worker is None or await self._worker.ended(STOP_TIMEOUT_SECONDS)
        return finished and ended

    # --- starting ---

    @property
    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise not_ready("starting")
        return self._model

    async def _prepare(self) -> InferenceWorkers:
        opening = self._opening or LoadedModel.open_in_background(self._settings)
        model = self._model = await asyncio.wrap_future(opening)
        self._batcher.packed = bool(model.artifact and model.artifact.manifest.packed)
        worker = InferenceWorkers(
            model,
            self._batcher,
            self._metrics,
            self._throughput,
            count=self._parallelism.concurrent_runs,
            cpus=self._parallelism.cpus,
            verify=lambda: model.check_canary(worker.run),
            on_fatal=self._on_workers_lost,
            clock=self._clock,
        )
        await self._off_the_loop(model.warm_up, self._settings)
        return worker

    async def _off_the_loop(self, function: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    # --- one request ---

    async def _tokenize(
        self, texts: Sequence[str | Sequence[int]], **options: Any
    ) -> list[TokenizedText]:
        tokenize = partial(self._loaded.tokenizer.tokenize, texts, **options)
        try:
            if sum(map(len, texts)) <= INLINE_CHARACTERS:
                rows = tokenize()
            else:
                rows = await self._off_the_loop(tokenize)
        except UnusableInput as error:
            raise InvalidInput(str(error)) from None
        refuse_empty(rows)
        return rows

    def _submit(self, rows: list[TokenizedText], depth: int | None, now: float) -> PendingRequest:
        sequences = [row.input_ids for row in rows]
        known = {} if self._cache is None else self._cache.find(sequences, depth=depth)
        missing = [position for position in range(len(sequences)) if position not in known]
        future = asyncio.get_running_loop().create_future()
        request = PendingRequest(
            sequences, self.dim, future, positions=missing, depth=depth, arrival=now
        )
        for position, row in known.items():
            request.embeddings[position] = row
        if missing:
            self._admission.submit(request)
        else:
            future.set_result(None)
        if self._cache is not None:
            self._metrics.cache_hits.inc(len(known))
            self._metrics.cache_misses.inc(len(missing))
        return request

    def _keep(self, request: PendingRequest) -> None:
        if self._cache is not None:
            rows = {position: request.embeddings[position] for position in request.positions}
            self._cache.keep(request.sequences, rows, depth=request.depth)

    def _result(
        self, request: PendingRequest, rows: list[TokenizedText], tokenize_seconds: float
    ) -> EmbedResult:
        result = EmbedResult(
            request.embeddings,
            [len(row) for row in rows],
            [row.truncated for row in rows],
            tokenize_seconds,
            request.queue_seconds / len(rows),
            request.inference_seconds / len(rows),
        )
        self._metrics.tokenize_duration.observe(result.tokenize_seconds)
        self._metrics.queue_duration.observe(result.queue_seconds)
        self._metrics.inference_duration.observe(result.inference_seconds)
        self._metrics.truncated_texts.inc(sum(result.truncated))
        return result

    def _out_of_time(self, request: PendingRequest | None) -> ServiceError:
        """The error for a request whose scope ended: its deadline came, or the engine gave up."""
        if self._aborted:
            self._metrics.failed.labels("stopped").inc()
            return not_ready(self._state)
        stage = _stage(request)
        self._metrics.timed_out.labels(stage).inc()
        return DeadlineExceeded(
            f"The request's time ran out in the stage {stage}. Send fewer texts, or try later."
        )

    def _on_workers_lost(self, reason: str) -> None:
        """The inference thread is lost for good: nobody waits for it, and the owner is told."""
        self._state, self._failure = "failed", reason
        self._abort_in_flight()
        if self._on_fatal:
            self._on_fatal(reason)

    def _abort_in_flight(self) -> None:
        self._aborted = True
        self._in_flight.expire_all()


def _stage(request: PendingRequest | None) -> str:
    if request is None:
        return "tokenize"
    return "inference" if request.started else "queue"
