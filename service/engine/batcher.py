"""Rows waiting for the encoder, and which of them run together next.

Order. Each row carries a start tag: the tokens the batcher had handed out when its request came,
plus the tokens of the same request in front of it. The row with the lowest tag leads the next
batch. A text that comes alone thus goes before all but the first rows of a request of two thousand
texts, and nobody starves: the tokens handed out only grow, so from some moment on every newcomer
has a higher tag than the row that waits. This is start-time fair queueing (Goyal, Vin and Cheng,
1996) with the served work itself as the virtual clock; unlike an order by due time it needs no
measured rate and no clock.

Lengths. A batch is padded to its longest row, so the leader is joined by the rows nearest to it in
length, until the batch is full or its padding costs as much as a run of its own would. That is far
more padding where the encoder works on packed tokens (`model.export.packing`) and pads in
attention only.

Depths. A run stops at one depth, so only rows of the leader's depth join it. A token counts the
same at every depth.
"""

import asyncio
import heapq
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int | None, int]  # depth and length

# Work is split between idle takers in parts of at least so many times what a run costs by itself.
SHARE_RUN_COSTS = 2

# What a token of padding costs an encoder that packs, in tokens. Attention over short rows is cheap
# next to the matrix products of a token, and grows with the rows. Measured with MiniLM on a CPU, in
# batches with one row longer than the others: 0.07 to 0.15 up to 64 tokens, 0.17 to 0.26 at 128,
# 0.3 to 0.7 at 256. With mixed traffic 0.2 did better than 0.1.
PACKED_PADDING_COST = 0.2
PACKED_PADDING_COST_1_AT = 512  # tokens of the longest row


# So many batches after the last that met another, a batch counts as alone. A run with all the cores
# takes more of their time than one with a single core, and one that is met halfway has to share
# them after all.
QUIET_BATCHES = 8


class PendingRequest:
    """One caller's texts on their way through the engine, and the one future it waits for.

    ``positions`` are the sequences to embed, all of them unless some embeddings are known already.
    ``depth`` is where the encoder stops, None for nowhere.

    The inference thread writes rows of ``embeddings``; all else that changes after submission is
    changed either under the batcher's lock (``waiting_*``, ``started``, ``dropped``) or on the
    event loop (``unanswered``, ``*_seconds``).
    """

    __slots__ = (
        *("sequences", "positions", "embeddings", "future", "arrival", "tokens", "waiting_texts"),
        *("waiting_tokens", "started", "dropped", "unanswered"),
        *("queue_seconds", "inference_seconds", "depth"),
    )

    def __init__(
        self,
        sequences: Sequence[Sequence[int]],
        dim: int,
        future: asyncio.Future[None],
        *,
        positions: Sequence[int] | None = None,
        depth: int | None = None,
        arrival: float = 0.0,
    ) -> None:
        self.sequences = sequences
        self.depth = depth
        self.positions = range(len(sequences)) if positions is None else positions
        self.embeddings: NDArray[np.float32] = np.empty((len(sequences), dim), dtype=np.float32)
        self.future = future
        self.arrival = arrival
        self.tokens = sum(len(sequences[position]) for position in self.positions)
        self.waiting_texts = 0
        self.waiting_tokens = 0
        self.started = False  # a row of it has been handed to the encoder
        self.dropped = False  # nobody waits for it any more
        self.unanswered = len(self.positions)
        self.queue_seconds = 0.0  # summed over its texts
        self.inference_seconds = 0.0


class QueuedText(NamedTuple):
    """One text of a request. Rows compare by tag; ``number`` is unique, so never by request."""

    tag: int
    number: int
    request: PendingRequest
    position: int

    @property
    def sequence(self) -> Sequence[int]:
        return self.request.sequences[self.position]


class Batch(NamedTuple):
    """Rows of one depth, or none; ``alone`` says that no other batch runs or waits meanwhile, and
    that this has been so for the last QUIET_BATCHES."""

    rows: list[QueuedText]
    exclusive: bool


NO_BATCH = Batch([], exclusive=True)


class Batcher:
    """A queue bounded in tokens that hands out batches. Safe to share between threads.

    A batch is formed when a thread comes for it, never earlier, so that what arrives while one
    runs can join the next. Forming costs O(lengths * log(lengths) + rows taken * log(rows
    waiting)), where lengths are the distinct ones that wait, of all depths.
    ``run_cost_tokens`` is what a run costs beyond its tokens, in tokens: the padding worth taking,
    or what costs as much where ``packed`` says that the encoder packs. It may be set at any time.
    Where several threads take batches (``takers``), what waits is shared between the idle ones.
    """

    def __init__(
        self,
        *,
        max_batch_tokens: int,
        max_batch_texts: int,
        max_queue_tokens: int,
        run_cost_tokens: int,
        num_workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._max_batch_texts = max_batch_texts
        self._max_queue_tokens = max_queue_tokens
        self._run_cost_tokens = run_cost_tokens
        self._num_workers = num_workers
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[threading.Condition] = []  # of the takers that wait, the last one last
        self._heaps: dict[Shape, list[QueuedText]] = {}  # no heap is empty
        self._waiting: dict[PendingRequest, None] = {}  # an ordered set, oldest first
        self._numbers = 0
        self._served_tokens = 0
        self._quiet_batches = QUIET_BATCHES
        self._closed = False
        self.packed = False
        self.texts = 0
        self.tokens = 0

    @property
    def idle_workers(self) -> int:
        """How many threads wait for a batch."""
        return len(self._idle)

    @property
    def is_full(self) -> bool:
        """Whether nothing at all would be admitted now."""
        return self.tokens >= self._max_queue_tokens

    def oldest_seconds(self) -> float:
        """Returns how long the oldest waiting request has waited, 0 when none does."""
        with self._lock:
            oldest = next(iter(self._waiting), None)
            return 0.0 if oldest is None else self._clock() - oldest.arrival

    def submit(self, request: PendingRequest) -> bool:
        """Queues all rows of ``request``, or none and returns False when they do not fit.

        An empty queue takes any request: one above the limit would otherwise never be served.
        """
        with self._lock:
            if self.tokens and self.tokens + request.tokens > self._max_queue_tokens:
                return False
            self._push(request)
            self._wake()
            return True

    def drop(self, request: PendingRequest) -> None:
        """Forgets the rows of ``request`` that wait and gives their room back at once."""
        with self._lock:
            request.dropped = True
            if not request.waiting_texts:
                return
            shapes = {(request.depth, len(sequence)) for sequence in request.sequences}
            for shape in shapes & self._heaps.keys():
                rest = [row for row in self._heaps[shape] if row.request is not request]
                heapq.heapify(rest)
                self._heaps[shape] = rest
            self._remove_empty_heaps()
            self._take_from_queue(request, request.waiting_texts, request.waiting_tokens)

    def next_batch(self, patience_seconds: float | None = None) -> Batch | None:
        """Waits for rows and returns the next batch of them; None once the batcher is closed.

        The batch is empty when nothing has come for ``patience_seconds``.
        """
        bell = threading.Condition(self._lock)
        with self._lock:
            while not (self.texts or self._closed):
                self._idle.append(bell)
                if not bell.wait(patience_seconds) and bell in self._idle:
                    self._idle.remove(bell)
                    return NO_BATCH
            if self._closed:
                return None
            rows = self._form(self._share())
            exclusive = not self.texts and len(self._idle) == self._num_workers - 1
            self._quiet_batches = self._quiet_batches + 1 if exclusive else 0
            if self.texts:
                self._wake()  # the rest is another taker's share
            return Batch(rows, self._quiet_batches > QUIET_BATCHES)

    def close(self) -> None:
        """Makes every call of `next_batch` return None from now on."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._wake()

    def _wake(self) -> None:
        """Wakes the taker that has waited the shortest: what it needs is still in the caches."""
        if self._idle:
            self._idle.pop().notify()

    def _push(self, request: PendingRequest) -> None:
        tag = self._served_tokens
        for position in request.positions:
            length = len(request.sequences[position])
            heap = self._heaps.setdefault((request.depth, length), [])
            heapq.heappush(heap, QueuedText(tag, self._numbers, request, position))
            self._numbers += 1
            tag += length
        request.waiting_texts = len(request.positions)
        request.waiting_tokens = request.tokens
        self.texts += request.waiting_texts
        self.tokens += request.waiting_tokens
        self._waiting[request] = None

    def _share(self) -> int:
        """How many rows one of the idle takers should have; a share is worth a few runs' cost."""
        worth_sharing = self.tokens // (SHARE_RUN_COSTS * self._run_cost_tokens or 1)
        shares = max(1, min(len(self._idle) + 1, worth_sharing))
        return min(self._max_batch_texts, -(-self.texts // shares))

    def _form(self, max_texts: int) -> list[QueuedText]:
        depth, longest = min(self._heaps, key=lambda shape: self._heaps[shape][0])
        heaps = {length: heap for (at, length), heap in self._heaps.items() if at == depth}
        lengths = sorted(heaps)
        shorter = bisect_left(lengths, longest)  # the leader's length, then downwards
        longer = shorter + 1
        rows = [heapq.heappop(heaps[longest])]
        padding = 0
        while len(rows) < max_texts:
            while shorter >= 0 and not heaps[lengths[shorter]]:
                shorter -= 1
            while longer < len(lengths) and not heaps[lengths[longer]]:
                longer += 1
            below = lengths[shorter] if shorter >= 0 else 0
            above = lengths[longer] if longer < len(lengths) else 0
            length, added = self._nearest(longest, len(rows), below, above)
            padding += added
            longest = max(longest, length)
            if not length or padding * self._padding_cost(longest) > self._run_cost_tokens:
                break
            rows.append(heapq.heappop(heaps[length]))
        self._remove_empty_heaps()
        self._account(rows)
        return rows

    def _nearest(self, longest: int, count: int, below: int, above: int) -> tuple[int, int]:
        """Which of two waiting lengths fits with less padding, and that padding; 0 is for none."""
        room = self._max_batch_tokens // (count + 1)  # the longest row that one more row allows
        best = (0, 0)
        if below and longest <= room:
            best = (below, longest - below)
        if above and above <= room:
            added = count * (above - longest)
            if not best[0] or added < best[1]:
                best = (above, added)
        return best

    def _padding_cost(self, longest: int) -> float:
        """What a token of padding costs, in tokens, in a batch with a row of ``longest`` tokens."""
        if not self.packed:
            return 1.0
        return min(1.0, max(PACKED_PADDING_COST, longest / PACKED_PADDING_COST_1_AT))

    def _account(self, rows: list[QueuedText]) -> None:
        for row in rows:
            row.request.started = True
            length = len(row.sequence)
            self._served_tokens += length
            self._take_from_queue(row.request, 1, length)

    def _take_from_queue(self, request: PendingRequest, texts: int, tokens: int) -> None:
        request.waiting_texts -= texts
        request.waiting_tokens -= tokens
        self.texts -= texts
        self.tokens -= tokens
        if not request.waiting_texts:
            del self._waiting[request]

    def _remove_empty_heaps(self) -> None:
        self._heaps = {shape: heap for shape, heap in self._heaps.items() if heap}
