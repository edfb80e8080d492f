"""Two lanes of texts, bounded in tokens, from which inference threads take batches.

Interactive texts go first, and bulk ages: each token of theirs that runs while bulk waits adds to
what bulk is owed, and once it is owed a batch, bulk leads. While both lanes wait, bulk so has its
share of all tokens, to within one batch, and no more. A batch has texts of one lane, because all of
them wait for its end. Within a lane, `service.engine.inference.fair_queue` says which texts go
together.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from s2sent.service.engine.inference.fair_queue import (
    BatchLimits,
    FairQueue,
    PendingRequest,
    QueuedText,
)
from s2sent.service.lanes import LANES, Lane

# With two threads, which is where it was measured, so many texts are not split while nothing runs.
# Runs side by side do not end together: from then on each client's next text would find one core
# taken.
FEW_TEXTS = 3

# Weight of the past in bulk's measured share, per batch: about the last ten batches count.
SHARE_DECAY = 0.9

Call = Callable[[], None]
Place = tuple[FairQueue, PendingRequest, Sequence[int], int]  # texts, by position; their tokens


class Batch(NamedTuple):
    """Texts of one lane, depth and kind, or none; ``exclusive`` if no other batch runs or waits."""

    texts: list[QueuedText]
    exclusive: bool


NO_TEXTS = Batch([], exclusive=True)


def at_once(call: Call) -> None:
    call()


class Batcher:
    """Forms a batch when a thread asks for one, so that it has what came during the last run.

    Safe to share between threads. ``max_queue_tokens`` bounds each lane, so that bulk never takes
    the room of the other. ``bulk_share``, above 0 and below 1, is bulk's share of the tokens that
    run while both lanes wait. So many texts of an interactive request as ``interactive_texts`` says
    are interactive, at least one, and the others wait with bulk: none fills the lane alone.

    ``call_soon`` makes the call that wakes an idle thread. An event loop's own makes it when all
    that arrived together has been queued, so that these texts run together.
    """

    def __init__(
        self,
        limits: BatchLimits,
        *,
        max_queue_tokens: int,
        bulk_share: float,
        interactive_texts: int = sys.maxsize,
        num_workers: int = 1,
        call_soon: Callable[[Call], object] = at_once,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self._max_queue_tokens = max_queue_tokens
        self._bulk_share = bulk_share
        self._owed_per_token = bulk_share / (1 - bulk_share)
        self._interactive_texts = max(1, interactive_texts)
        self._num_workers = num_workers
        self._call_soon = call_soon
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[threading.Condition] = []  # one per waiting thread, in order of waiting
        self._wakes_soon = False
        self._running: WeakKeyDictionary[threading.Thread, int] = WeakKeyDictionary()  # texts
        self._interactive, self._bulk = FairQueue(limits), FairQueue(limits)
        self._lanes: dict[Lane, FairQueue] = {"interactive": self._interactive, "bulk": self._bulk}
        self._owed_to_bulk = 0.0  # tokens
        self._recent = {"interactive": 0.0, "bulk": 0.0}  # tokens that ran while bulk waited
        self._closed = False

    @property
    def texts(self) -> int:
        """Texts that wait, in both lanes."""
        return sum(queue.texts for queue in self._lanes.values())

    @property
    def tokens(self) -> int:
        """Tokens that wait, in both lanes."""
        return sum(queue.tokens for queue in self._lanes.values())

    def texts_in(self, lane: Lane) -> int:
        return self._lanes[lane].texts

    def tokens_in(self, lane: Lane) -> int:
        return self._lanes[lane].tokens

    def is_full(self, lane: Lane) -> bool:
        """Whether no request would be admitted to the lane now."""
        return self._lanes[lane].tokens >= self._max_queue_tokens

    def share(self, lane: Lane) -> float:
        """A lane's part of the tokens that run while it waits: bulk's is measured lately."""
        if lane == "interactive":
            return 1 - self._bulk_share if self._bulk.texts else 1.0
        bulk, every = self._recent["bulk"], sum(self._recent.values())
        if not every:
            return self._bulk_share if self._interactive.texts else 1.0
        return max(self._bulk_share, bulk / every)

    def oldest_seconds(self, lane: Lane) -> float:
        """Return how long the lane's oldest request has waited, 0 when none waits."""
        with self._lock:
            oldest = self._lanes[lane].oldest
            return 0.0 if oldest is None else self._clock() - oldest.arrival

    def submit(self, *parts: PendingRequest) -> bool:
        """Queue all texts of a request, whose parts are of one lane; False when they do not fit.

        Then none is queued. An empty lane takes a request of any size, which would never be served
        otherwise.
        """
        places = list(self._places(parts))
        asked: dict[FairQueue, int] = {}
        for queue, _, _, tokens in places:
            asked[queue] = asked.get(queue, 0) + tokens
        with self._lock:
            for queue, tokens in asked.items():
                if queue.tokens and queue.tokens + tokens > self._max_queue_tokens:
                    return False
            for queue, part, positions, _ in places:
                queue.push(part, positions)
            wakes = bool(self._idle) and not self._wakes_soon
            self._wakes_soon |= wakes
        if wakes:
            self._call_soon(self._wake_soon)
        return True

    def drop(self, request: PendingRequest) -> None:
        with self._lock:
            request.dropped = True
            for queue in self._lanes.values():
                queue.drop(request)

    def has_started(self, request: PendingRequest) -> bool:
        """Whether a text of ``request`` has been handed to the encoder."""
        return request.started

    def next_batch(self, idle_seconds: float | None = None) -> Batch | None:
        """Wait for texts and return the next batch; None once the batcher is closed.

        The batch has no texts when none came for ``idle_seconds``; None waits for ever.
        """
        thread = threading.current_thread()
        with self._lock:
            self._running[thread] = 0
            while not (self._has_texts or self._closed):
                woken = threading.Condition(self._lock)
                self._idle.append(woken)
                if not woken.wait(idle_seconds) and woken in self._idle:
                    self._idle.remove(woken)
                    return NO_TEXTS
            if self._closed:
                return None
            texts = self._take()
            self._running[thread] = len(texts)
            exclusive = not self._has_texts and len(self._idle) == self._num_workers - 1
            if self._has_texts:
                self._wake()  # for its share of the rest
            return Batch(texts, exclusive)

    def close(self) -> None:
        """Make every call of `next_batch` return None from now on."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._wake()

    def _places(self, parts: Sequence[PendingRequest]) -> Iterator[Place]:
        """The queue of each text of a request, by part and positions."""
        left = self._interactive_texts if parts[0].lane == "interactive" else 0
        for part in parts:
            if not 0 < left < len(part.positions):  # all of it goes to one lane
                yield self._interactive if left else self._bulk, part, part.positions, part.tokens
            else:
                first, others = part.positions[:left], part.positions[left:]
                tokens = sum(len(part.sequences[position]) for position in first)
                yield self._interactive, part, first, tokens
                yield self._bulk, part, others, part.tokens - tokens
            left = max(0, left - len(part.positions))

    @property
    def _has_texts(self) -> bool:
        return bool(self._interactive.texts or self._bulk.texts)

    def _wake_soon(self) -> None:
        with self._lock:
            self._wakes_soon = False
            self._wake()

    def _wake(self) -> None:
        """Wake the thread that has waited the shortest: its data is still in the caches."""
        if self._idle:
            self._idle.pop().notify()

    def _take(self) -> list[QueuedText]:
        """A batch of the lane whose turn it is, and what bulk is owed after it."""
        interactive, bulk = self._interactive, self._bulk
        if not bulk.texts:
            self._owed_to_bulk = 0.0
            return interactive.take(self._share(interactive))
        due = self._owed_to_bulk >= min(bulk.tokens, self.limits.max_tokens)
        queue = bulk if due or not interactive.texts else interactive
        texts = queue.take(self._share(queue))
        tokens = sum(len(text.sequence) for text in texts)
        gained = tokens * self._owed_per_token if queue is interactive else -tokens
        self._owed_to_bulk = max(0.0, self._owed_to_bulk + gained)
        for lane in LANES:
            self._recent[lane] *= SHARE_DECAY
        self._recent["bulk" if queue is bulk else "interactive"] += tokens
        return texts

    def _share(self, queue: FairQueue) -> int:
        """How many texts an idle thread takes, so that all threads have about as many.

        It counts the texts that run too: a thread that took all that waits would leave the next one
        idle. A share is worth the cost of a run, and for two threads few texts are one share.
        """
        running = sum(self._running.values())
        few = not running and self._num_workers == 2 and queue.texts <= FEW_TEXTS
        run_costs = queue.tokens // (self.limits.run_cost_tokens or 1)
        worth_sharing = 1 if few else run_costs
        least = -(-queue.texts // max(1, worth_sharing))
        waiting = -(-queue.texts // (len(self._idle) + 1))
        of_all = -(-(queue.texts + running) // self._num_workers)
        return min(self.limits.max_texts, max(least, min(waiting, of_all)))
