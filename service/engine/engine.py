"""The engine of one process: the queue, the model, and the threads that run it.

`service.engine.base` has what comes before the queue. A request to embed waits in the batcher and
runs in an inference thread.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from s2sent.service.engine.admission import TextQueue, not_ready
from s2sent.service.engine.base import STOP_TIMEOUT_SECONDS, BaseEngine
from s2sent.service.engine.cache import CachingBatcher, EmbeddingCache
from s2sent.service.engine.inference.batcher import Batcher
from s2sent.service.engine.inference.fair_queue import BatchLimits, PendingRequest
from s2sent.service.engine.inference.model import LoadedModel
from s2sent.service.engine.inference.parallelism import Parallelism
from s2sent.service.engine.inference.start_step import state_while_starting
from s2sent.service.engine.inference.throughput import ThroughputEstimate
from s2sent.service.engine.inference.workers import InferenceWorkers
from s2sent.service.engine.tokenization import start_threads_of
from s2sent.service.engine.types import Readiness
from s2sent.service.lanes import LANES, Lane
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics
from s2sent.service.threads import in_background


class Engine(BaseEngine):
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
        self._opening = model
        self._on_fatal = on_fatal
        self._failure = "engine could not start"  # the reason while the state is "failed"
        self._workers: InferenceWorkers | None = None
        limits = BatchLimits.of(settings)
        self._throughput = ThroughputEstimate(limits)
        self._cache = EmbeddingCache(settings.cache_bytes)
        queue = partial(CachingBatcher, self._cache, metrics) if settings.cache_bytes else Batcher
        self._batcher = queue(
            limits,
            max_queue_tokens=settings.max_queue_tokens,
            bulk_share=settings.bulk_share,
            interactive_texts=settings.interactive_texts,
            num_workers=Parallelism.of(settings).concurrent_runs,
            call_soon=lambda wake: asyncio.get_running_loop().call_soon(wake),
            clock=clock,
        )
        super().__init__(settings, metrics, self._batcher, self.seconds_to_empty, clock=clock)
        self._publish_gauges()

    async def start(self) -> None:
        """Load, warm up and verify the model off the loop, then start to take batches.

        Raises ArtifactError, ProviderUnavailable, EngineStartFailed or NoMoreThreads.
        """
        since = self._clock()
        try:
            self._model = model = await self._load()
            if self._admission.state != "starting":  # drained meanwhile
                return
            start_threads_of(model.tokenizer)
            self._workers = self._start_workers(model)
        except Exception:  # whatever it was, `state` tells it
            if self._admission.state == "starting":
                self._admission.state = "failed"
            raise
        self._admission.state = "serving"
        model.describe(self._metrics)
        self._metrics.model_load_seconds.set(self._clock() - (model.opened_since or since))

    @property
    def queue(self) -> TextQueue:
        return self._batcher

    def seconds_to_empty(self, lane: Lane | None = None, more_tokens: int = 0) -> float:
        """How long what waits in a lane, or in both, will take, and ``more_tokens`` after it."""
        if lane is None:
            return self._throughput.seconds_for(self._batcher.tokens)
        tokens = self._batcher.tokens_in(lane) + more_tokens
        return self._throughput.seconds_for(tokens) / self._batcher.share(lane)

    def enqueue(self, parts: Sequence[PendingRequest]) -> None:
        """Queue a request that another process has admitted and tokenised.

        Raises Overloaded when its tokens do not fit, and NotReady when nothing would run them.
        """
        if self._admission.state in ("starting", "failed"):
            raise not_ready(self._admission.state)
        self._admission.submit(parts)

    def drop(self, part: PendingRequest) -> None:
        """Remove the texts of such a part, for which nobody waits any more."""
        self._batcher.drop(part)

    def readiness(self) -> Readiness:
        """Whether traffic should be sent here. Cheap, and never waits for inference."""
        if self._admission.state == "failed":
            return Readiness(False, self._failure)
        if self._admission.state == "starting":
            return Readiness(False, state_while_starting())
        if self._admission.state != "serving" or self._workers is None:
            return Readiness(False, self._admission.state)
        fault = self._workers.fault_now(self._settings.stall_timeout_seconds)
        return Readiness(False, fault) if fault else Readiness(True, "ready")

    async def drain(self, timeout_seconds: float) -> bool:
        """Refuse new work, finish what was accepted, then stop the threads.

        What is not finished after ``timeout_seconds`` is answered with NotReady. Returns whether
        everything was finished. May be called again, or before `start`.
        """
        finished = await self._settled(timeout_seconds)
        self._batcher.close()
        self._tokenization.shut_down()
        if self._workers:
            await self._workers.ended(STOP_TIMEOUT_SECONDS)
        return finished

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
        self._metrics.engine_ready.set_function(lambda: self.readiness().ready)
        self._metrics.cache_bytes.set_function(lambda: self._cache.bytes)
        for gauge, read in (
            (self._metrics.queue_texts, self._batcher.texts_in),
            (self._metrics.queue_tokens, self._batcher.tokens_in),
            (self._metrics.queue_oldest_seconds, self._batcher.oldest_seconds),
        ):
            for lane in LANES:
                gauge.labels(lane).set_function(partial(read, lane))

    def _on_workers_lost(self, reason: str) -> None:
        """The inference threads are lost for good: no request may wait for them."""
        self._admission.state, self._failure = "failed", reason
        self._abort_in_flight()
        if self._on_fatal:
            self._on_fatal(reason)
