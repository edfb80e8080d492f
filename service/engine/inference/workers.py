"""The inference threads and their supervision: they run batches and are replaced when they die.

A thread runs the encoder and writes embeddings. What callers see (futures, counters of a request,
restarts) changes on the event loop only, to which a thread posts once per batch.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from s2sent.service.engine.inference.batcher import NO_TEXTS, Batch, Batcher
from s2sent.service.engine.inference.fair_queue import PendingRequest, QueuedText
from s2sent.service.engine.inference.model import EngineStartFailed, LoadedModel, WrongShape
from s2sent.service.engine.inference.throughput import ThroughputEstimate
from s2sent.service.errors import InferenceFailed, NotReady, ServiceError, failed_text
from s2sent.service.telemetry.metrics import FULL_DEPTH, Metrics
from s2sent.service.threads import NoMoreThreads, start_thread

logger = logging.getLogger(__name__)

# One death may be a bug met by one batch; so many within the window mean that the device is lost.
MAX_DEATHS = 3
DEATHS_WINDOW_SECONDS = 60.0

# Where the system starts no thread, as under a limit that other processes reach, it is tried again.
MAX_RESTARTS = 5
RESTART_SECONDS = 1.0

# An inference thread that has been idle so long releases the memory its runs have freed, some
# 100 MB after heavy load. The next run takes it back at some microseconds a page. None never does.
REST_SECONDS: float | None = 1.0


class InferenceWorkers:
    """``count`` threads that share one model, and their supervision on the event loop.

    ``verify`` raises when the encoder cannot be trusted. A thread that replaces a dead one calls it
    before its first batch, and any thread after a batch of which no text could be embedded.
    ``on_fatal`` is called with a sentence, on the loop, when threads have died too often.
    """

    def __init__(
        self,
        model: LoadedModel,
        batcher: Batcher,
        metrics: Metrics,
        throughput: ThroughputEstimate,
        *,
        count: int,
        verify: Callable[[], None],
        on_fatal: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._batcher = batcher
        self._metrics = metrics
        self._verify = verify
        self._on_fatal = on_fatal
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._threads: set[threading.Thread] = set()
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS + 1)
        self._running_since: dict[int, float] = {}  # by thread identifier
        self._ended = asyncio.Event()
        self._throughput = throughput
        self._fault: str | None = None  # why it cannot serve now; None when it can

    def fault_now(self, stall_timeout_seconds: float) -> str | None:
        """Why it cannot serve now, which a run of more than ``stall_timeout_seconds`` is too."""
        began = list(self._running_since.values())
        running = self._clock() - min(began) if began else 0.0
        if self._fault or running <= stall_timeout_seconds:
            return self._fault
        return f"batch running for {running:.0f} s"

    def start(self) -> None:
        for _ in range(self._count):
            self._spawn(verify=lambda: None)

    async def ended(self, timeout_seconds: float) -> None:
        """Wait for the threads to end after `Batcher.close`, at most so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_seconds)

    def run(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
        weights: bool = False,
    ) -> NDArray[np.float32]:
        """`LoadedModel.run`, measured. Raises WrongShape, or what the encoder raises."""
        thread, started = threading.get_ident(), self._clock()
        self._running_since[thread] = started
        try:
            embeddings = self._model.run(
                sequences, all_threads=all_threads, depth=depth, weights=weights
            )
        finally:
            del self._running_since[thread]
        seconds = self._clock() - started
        tokens = sum(map(len, sequences))
        if all_threads:  # in its fixed part one core works, and the others wait
            self._throughput.add(tokens, seconds, fixed_parts=self._count)
        else:  # it has a share of the machine, as have the others
            self._throughput.add(tokens, seconds / self._count)
        return embeddings

    # --- on the event loop ---

    def _spawn(self, verify: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._main, args=(verify,), name="inference", daemon=True)
        start_thread(thread)
        self._threads.add(thread)

    def _finished(self, thread: threading.Thread) -> None:
        thread.join()  # it has nothing left to do
        self._threads.discard(thread)
        if not self._threads:
            self._ended.set()

    def _serving(self) -> None:
        self._fault = None

    def _died(self, thread: threading.Thread, reason: str, batch: Sequence[QueuedText]) -> None:
        """Answer the requests of the batch a thread died with, and replace the thread.

        It is not replaced when threads have died too often. `fault` stays set until the new thread
        has verified the encoder.
        """
        self._threads.discard(thread)
        message = "The inference engine died while it ran this request. Send it again."
        for request in {text.request for text in batch}:
            self._fail_request(request, NotReady(message, retry_after_seconds=1), "engine_died")
        now = self._clock()
        self._deaths.append(now)
        if len(self._deaths) > MAX_DEATHS and now - self._deaths[0] <= DEATHS_WINDOW_SECONDS:
            self._fault = (
                f"engine thread died {len(self._deaths)} times within "
                f"{DEATHS_WINDOW_SECONDS:.0f} s: {reason}"
            )
            self._give_up()
            return
        self._fault = f"engine thread died: restarting ({reason})"
        self._metrics.engine_restarts.inc()
        self._replace(MAX_RESTARTS)

    def _replace(self, tries: int) -> None:
        """Start a thread in the place of a dead one, now or later; give up after so many tries."""
        try:
            self._spawn(self._verify)
        except NoMoreThreads as error:
            self._fault = f"engine thread died and is not replaced: {error}"
            logger.error(self._fault)
            if tries > 1:
                self._loop.call_later(RESTART_SECONDS, self._replace, tries - 1)
            else:
                self._give_up()

    def _give_up(self) -> None:
        self._ended.set()
        self._on_fatal(self._fault or "")

    def _answer(self, done: Sequence[QueuedText], started: float, seconds: float) -> None:
        self._settle(done, started, seconds)
        self._metrics.deferred.add(self._observe, done, seconds)

    def _settle(self, done: Sequence[QueuedText], started: float, seconds: float) -> None:
        for text in done:
            request = text.request
            request.queue_seconds += started - request.arrival
            request.inference_seconds += seconds
            request.unanswered -= 1
            if not request.unanswered:
                request.settle()

    def _observe(self, batch: Sequence[QueuedText], seconds: float) -> None:
        lengths = [len(text.sequence) for text in batch]
        tokens, padded = sum(lengths), len(batch) * max(lengths)
        depth = batch[0].request.depth or FULL_DEPTH
        self._metrics.batch_texts.labels(depth).observe(len(batch))
        self._metrics.batch_tokens.observe(tokens)
        self._metrics.batch_padding_ratio.observe(1 - tokens / padded)
        self._metrics.batch_duration.labels(depth).observe(seconds)
        lane = batch[0].request.lane
        self._metrics.texts[lane].inc(len(batch))
        self._metrics.tokens[lane].inc(tokens)

    def _fail_request(self, request: PendingRequest, error: ServiceError, reason: str) -> None:
        if request.settle(error):
            self._metrics.failed.labels(reason).inc()

    # --- in the thread ---

    def _main(self, verify: Callable[[], None]) -> None:
        thread, batch = threading.current_thread(), NO_TEXTS
        try:
            verify()
            self._post(self._serving)
            while taken := self._next_batch():
                batch, taken = taken, None  # so that no request outlives its answer
                if not self._process(batch.texts, batch.exclusive):
                    self._verify()  # whether the texts are at fault or the encoder
                batch = NO_TEXTS
            self._post(self._finished, thread)
        except BaseException as error:  # SystemExit and panics are deaths too
            logger.critical("an inference thread died", exc_info=True)
            reason = str(error) if isinstance(error, EngineStartFailed) else type(error).__name__
            self._post(self._died, thread, reason, batch.texts)

    def _next_batch(self) -> Batch | None:
        batch = self._batcher.next_batch(REST_SECONDS)
        if batch is NO_TEXTS:
            self._model.release_memory()
            batch = self._batcher.next_batch()
        return batch

    def _process(self, batch: list[QueuedText], all_threads: bool) -> bool:
        """Run texts and answer them; halve a batch that fails, until the text at fault is alone.

        Returns whether the encoder embedded any of them, or had nothing to do.
        """
        batch = [text for text in batch if not text.request.dropped]
        if not batch:
            return True
        row_of: dict[tuple[int, ...], int] = {}  # a text that comes twice is run once
        rows = [row_of.setdefault(tuple(text.sequence), len(row_of)) for text in batch]
        started = self._clock()
        try:
            asked = batch[0].request
            embeddings = self.run(
                list(row_of), all_threads=all_threads, depth=asked.depth, weights=asked.weights
            )
        except Exception as error:  # whatever the encoder raises, MemoryError too
            logger.exception("a batch of %d texts failed", len(batch))
            wrong_shape = isinstance(error, WrongShape)  # the encoder is at fault, not a text
            if wrong_shape or len(batch) == 1:
                self._fail_texts(batch, "wrong_shape" if wrong_shape else "inference_error")
                skipped = [text for text in batch if text.request.errors is not None]
                self._post(self._settle, skipped, started, self._clock() - started)
                return False
            middle = len(batch) // 2
            first, second = batch[:middle], batch[middle:]
            return self._process(first, all_threads) | self._process(second, all_threads)
        if len(row_of) < len(batch):
            embeddings = embeddings[rows]
            self._metrics.coalesced_texts.inc(len(batch) - len(row_of))
        return self._deliver(batch, embeddings, started, self._clock() - started)

    def _deliver(
        self,
        batch: list[QueuedText],
        embeddings: NDArray[np.float32],
        started: float,
        seconds: float,
    ) -> bool:
        """Write the usable embeddings into their requests; return whether there were any."""
        num_broken = 0
        are_finite, are_not_zero = np.isfinite(embeddings).all(axis=1), embeddings.any(axis=1)
        for reason, good in (("non_finite", are_finite), ("all_zero", are_not_zero)):
            if not good.all():
                broken = [batch[position] for position in np.flatnonzero(~good)]
                logger.error("%d of %d embeddings are %s", len(broken), len(batch), reason)
                self._fail_texts(broken, reason)
                num_broken += len(broken)
        for text, embedding in zip(batch, embeddings, strict=True):
            text.request.embeddings[text.position] = embedding
        self._post(self._answer, batch, started, seconds)
        return num_broken < len(batch)

    def _fail_texts(self, texts: Sequence[QueuedText], reason: str) -> None:
        """Fail these texts alone, or their requests, whose other texts then leave the queue."""
        message = "The encoder failed on a text of this request. Other requests are not affected."
        failed = set()
        for text in texts:
            if text.request.errors is None:
                failed.add(text.request)
            else:
                text.request.errors[text.position] = failed_text(text.position)
        for request in failed:
            self._batcher.drop(request)
            self._post(self._fail_request, request, InferenceFailed(message), reason)

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits for an answer any more
            logger.warning("the event loop ended before the inference thread")
