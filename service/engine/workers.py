"""The inference threads: they take batches, run them, hand out the rows; replaced when they die.

Threads. They run the encoder and write embeddings. Everything that callers see (futures, counters
of a request, restarts) happens on the event loop, to which a thread posts once a batch.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from service.engine.admission import ThroughputEstimate
from service.engine.batcher import NO_BATCH, Batch, Batcher, PendingRequest, QueuedText
from service.engine.model import EngineStartFailed, LoadedModel, WrongShape
from service.engine.parallelism import CorePin
from service.errors import InferenceFailed, NotReady, ServiceError
from service.metrics import Metrics

logger = logging.getLogger(__name__)

# A thread that dies once has met a bug; one that dies again and again has lost its device.
MAX_DEATHS = 3
DEATHS_WINDOW_SECONDS = 60.0


INFERENCE_NICENESS = 5
# Idle so long, a thread gives back the memory its runs have left it with: a hundred megabytes after
# a busy moment. The next run pays for what it takes of it with some microseconds a page.
REST_SECONDS = 1.0


class InferenceWorkers:
    """``count`` threads that share one model, and their supervision on the event loop.

    ``verify`` raises when the encoder is not to be trusted. It is run by each thread that replaces
    a dead one, before it takes a batch, and by a thread that could embed no row of a batch.
    Where there are ``cpus`` each thread is pinned to one of them
    (`service.engine.parallelism.CorePin`).
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
        cpus: Sequence[int] = (),
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
        self._cpus = cpus
        self._threads: set[threading.Thread] = set()
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS + 1)
        self._running_since: dict[int, float] = {}  # by thread
        self._ended = asyncio.Event()
        self._throughput = throughput
        self.fault: str | None = None  # why it does not serve now, None when it does

    def running_seconds(self) -> float:
        """Returns how long the longest run of this moment has taken, 0 when none is under way."""
        began = list(self._running_since.values())
        return self._clock() - min(began) if began else 0.0

    def start(self) -> None:
        """Starts the threads."""
        for place in range(self._count):
            self._spawn(place, verify=lambda: None)

    async def ended(self, timeout_seconds: float) -> bool:
        """Waits for the threads to end after `Batcher.close`, and returns whether they did."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_seconds)
        return self._ended.is_set()

    def run(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        exclusive: bool = True,
        depth: int | None = None,
    ) -> NDArray[np.float32]:
        """Runs the encoder once and measures it. Raises WrongShape, or what the encoder raises."""
        thread, started = threading.get_ident(), self._clock()
        self._running_since[thread] = started
        try:
            embeddings = self._model.run(sequences, exclusive=exclusive, depth=depth)
        finally:
            del self._running_since[thread]
        seconds = self._clock() - started
        # A run that is not alone has its share of the machine, and so have the others.
        self._throughput.add(
            sum(map(len, sequences)), seconds if exclusive else seconds / self._count
        )
        return embeddings

    # --- on the event loop ---

    def _spawn(self, place: int, verify: Callable[[], None]) -> None:
        thread = threading.Thread(
            target=self._main, args=(place, verify), name="inference", daemon=True
        )
        self._threads.add(thread)
        thread.start()

    def _finished(self, thread: threading.Thread) -> None:
        thread.join()  # it has nothing left to do
        self._threads.discard(thread)
        if not self._threads:
            self._ended.set()

    def _serving(self) -> None:
        self.fault = None

    def _died(
        self, thread: threading.Thread, place: int, reason: str, batch: Sequence[QueuedText]
    ) -> None:
        """Answers the batch a thread left behind, and replaces the thread unless it is hopeless.

        `fault` stays set until the new thread has proved the encoder right.
        """
        self._threads.discard(thread)
        message = "The inference engine died while it ran this request. Send it again."
        for request in {row.request for row in batch}:
            self._fail_request(request, NotReady(message, retry_after_seconds=1), "engine_died")
        now = self._clock()
        self._deaths.append(now)
        if len(self._deaths) > MAX_DEATHS and now - self._deaths[0] <= DEATHS_WINDOW_SECONDS:
            self.fault = (
                f"engine thread died {len(self._deaths)} times within "
                f"{DEATHS_WINDOW_SECONDS:.0f} s: {reason}"
            )
            self._ended.set()
            self._on_fatal(self.fault)
            return
        self.fault = f"engine thread died: restarting ({reason})"
        self._metrics.engine_restarts.inc()
        self._spawn(place, self._verify)

    def _answer(self, done: Sequence[QueuedText], started: float, seconds: float) -> None:
        for request, rows in Counter(row.request for row in done).items():
            request.queue_seconds += rows * (started - request.arrival)
            request.inference_seconds += rows * seconds
            request.unanswered -= rows
            if not request.unanswered and not request.future.done():
                request.future.set_result(None)
        # Behind the tasks that have just been woken: no answer waits for a number.
        self._loop.call_soon(self._observe, done, seconds)

    def _observe(self, rows: Sequence[QueuedText], seconds: float) -> None:
        lengths = [len(row.sequence) for row in rows]
        tokens, padded = sum(lengths), len(rows) * max(lengths)
        self._metrics.batch_texts.observe(len(rows))
        self._metrics.batch_tokens.observe(tokens)
        self._metrics.batch_padding_ratio.observe(1 - tokens / padded)
        self._metrics.batch_duration.observe(seconds)
        self._metrics.texts.inc(len(rows))
        self._metrics.tokens.inc(tokens)

    def _fail_request(self, request: PendingRequest, error: ServiceError, reason: str) -> None:
        if not request.future.done():
            request.future.set_exception(error)
            self._metrics.failed.labels(reason).inc()

    # --- in the thread ---

    def _main(self, place: int, verify: Callable[[], None]) -> None:
        thread, batch = threading.current_thread(), NO_BATCH
        core_pin = CorePin(self._cpus, place)
        _lower_priority()
        try:
            verify()
            self._post(self._serving)
            while taken := self._next_batch():
                batch = taken
                core_pin.pin(exclusive=batch.exclusive)
                if not self._process(batch.rows, batch.exclusive):
                    self._verify()  # was it the rows, or is it the encoder?
                batch = NO_BATCH
            self._post(self._finished, thread)
        except BaseException as error:  # SystemExit too must not pass in silence
            logger.critical("an inference thread died", exc_info=True)
            reason = str(error) if isinstance(error, EngineStartFailed) else type(error).__name__
            self._post(self._died, thread, place, reason, batch.rows)

    def _next_batch(self) -> Batch | None:
        batch = self._batcher.next_batch(REST_SECONDS)
        if batch is NO_BATCH:
            self._model.release_memory()
            batch = self._batcher.next_batch()
        return batch

    def _process(self, rows: list[QueuedText], exclusive: bool) -> bool:
        """Runs rows and answers them; halves a batch that fails, until the guilty row is alone.

        Returns whether the encoder embedded any of them, or had nothing to do.
        """
        rows = [row for row in rows if not row.request.dropped]
        if not rows:
            return True
        places: dict[tuple[int, ...], int] = {}  # a text that comes twice is run once
        place_of = [places.setdefault(tuple(row.sequence), len(places)) for row in rows]
        started = self._clock()
        try:
            depth = rows[0].request.depth
            embeddings = self.run(list(places), exclusive=exclusive, depth=depth)[place_of]
        except Exception as error:  # whatever the encoder raises, MemoryError too
            logger.exception("a batch of %d texts failed", len(rows))
            wrong_shape = isinstance(error, WrongShape)  # no row is to blame, halving finds none
            if wrong_shape or len(rows) == 1:
                self._fail_texts(rows, "wrong_shape" if wrong_shape else "inference_error")
                return False
            middle = len(rows) // 2
            first, second = rows[:middle], rows[middle:]
            return self._process(first, exclusive) | self._process(second, exclusive)
        self._metrics.coalesced_texts.inc(len(rows) - len(places))
        return self._deliver(rows, embeddings, started, self._clock() - started)

    def _deliver(
        self,
        rows: list[QueuedText],
        embeddings: NDArray[np.float32],
        started: float,
        seconds: float,
    ) -> bool:
        """Hands out what is finite and returns whether anything was."""
        finite = np.isfinite(embeddings).all(axis=1)
        if not finite.all():
            broken = np.flatnonzero(~finite)
            logger.error("%d of %d embeddings are not finite", len(broken), len(rows))
            self._fail_texts([rows[position] for position in broken], "non_finite")
        for row, embedding in zip(rows, embeddings, strict=True):
            row.request.embeddings[row.position] = embedding
        self._post(self._answer, rows, started, seconds)
        return bool(finite.any())

    def _fail_texts(self, rows: Sequence[QueuedText], reason: str) -> None:
        """Fails the requests of these rows; what else of them waits is not run in vain."""
        message = "The encoder failed on a text of this request. Other requests are not affected."
        for request in {row.request for row in rows}:
            self._batcher.drop(request)
            self._post(self._fail_request, request, InferenceFailed(message), reason)

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits for an answer any more
            logger.warning("the event loop ended before the inference thread")


def _lower_priority() -> None:
    """Lets the event loop go first where both want a core: it needs little, and everybody waits.

    On Linux a thread has a priority of its own (sched(7)); elsewhere nothing is changed.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), INFERENCE_NICENESS)
