"""The texts of one lane that wait: their order, and which of them run together.

Order: start-time fair queueing (Goyal, Vin and Cheng, 1996) over the virtual time of generalized
processor sharing (Parekh and Gallager, 1993), in tokens: each token handed out advances it by one
over the number of waiting requests, as if all of them were served side by side. A text's start tag
is the virtual time when its request came, plus the tokens of the same request before it. The text
with the lowest tag leads the next batch: a short request goes before most of the long ones, however
many there are, and nothing starves, since later requests have ever higher tags.

Length: a batch is padded to its longest text, so the texts nearest in length join the leader, until
the batch is full or its padding costs as much as another run would.

Depth: a run stops at one depth, so only texts of the leader's depth join it. Nor do texts whose
block weights are asked for share a run with texts to embed.
"""

import asyncio
import heapq
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from s2sent.service.errors import ServiceError
from s2sent.service.lanes import Lane
from s2sent.service.settings import Settings

Shape = tuple[int | None, bool, int]  # depth, whether for block weights, and length

# What a run costs beyond its tokens, in tokens: MiniLM's fixed part of a run takes as long as 9 to
# 12 tokens on a CPU core, and as about 3,000 on an H200 in fp16.
RUN_COST_TOKENS = {"cpu": 12, "gpu": 2048}

# What a token of padding costs an encoder on packed tokens (`model.export.cpu.packing`), in tokens:
# it pads in attention only, whose cost grows with the length. Measured with MiniLM on a CPU in
# batches with one text longer than the others: 0.07 to 0.15 up to 64 tokens, 0.17 to 0.26 at 128,
# 0.3 to 0.7 at 256. With mixed traffic 0.2 was faster than 0.1.
PACKED_PADDING_COST = 0.2
PACKED_PADDING_COST_1_AT = 512  # tokens of the longest text


class PendingRequest:
    """The texts of one request in the queue, and the future its caller waits for.

    ``positions`` are those of the sequences to embed: all, unless some embeddings are known.
    ``depth`` is the last block to run; None runs all. With ``weights`` the results are the block
    weights of the texts instead of their embeddings. ``dim`` is the length of a row. ``errors`` has
    the errors of single texts by position; where it is None, a text that fails fails the request.
    ``keep`` is called with it once it is embedded.

    Threads: an inference thread writes ``embeddings`` and ``errors``. ``started`` and ``dropped``
    change under the batcher's lock, ``unanswered`` and ``*_seconds`` on the event loop.
    """

    __slots__ = (
        *("sequences", "positions", "embeddings", "future", "arrival", "tokens", "started"),
        *("dropped", "unanswered", "queue_seconds", "inference_seconds", "depth", "weights"),
        *("errors", "lane", "keep"),
    )

    def __init__(
        self,
        sequences: Sequence[Sequence[int]],
        dim: int,
        future: asyncio.Future[None],
        *,
        positions: Sequence[int] | None = None,
        lane: Lane = "interactive",
        depth: int | None = None,
        weights: bool = False,
        arrival: float = 0.0,
        errors: dict[int, ServiceError] | None = None,
    ) -> None:
        self.sequences = sequences
        self.lane = lane
        self.depth = depth
        self.weights = weights
        self.errors = errors
        self.positions = range(len(sequences)) if positions is None else positions
        self.embeddings: NDArray[np.float32] = np.empty((len(sequences), dim), dtype=np.float32)
        self.future = future
        self.arrival = arrival
        self.keep: Callable[[PendingRequest], None] | None = None
        self.tokens = sum([len(sequences[position]) for position in self.positions])
        self.started = False  # a text of it has been handed to the encoder
        self.dropped = False  # nobody waits for it any more
        self.unanswered = len(self.positions)
        self.queue_seconds = self.inference_seconds = 0.0  # summed over its texts

    def settle(self, error: ServiceError | None = None) -> bool:
        """Answer whoever waits for it; False where nobody does any more. For the event loop."""
        if not self._answer(error):
            return False
        if error is None and self.keep:
            self.keep(self)
        return True

    def _answer(self, error: ServiceError | None) -> bool:
        if self.future.done():
            return False
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)
        return True

    def fill(self, known: Mapping[int, NDArray[np.float32]]) -> None:
        """Take embeddings that are known, by position; to be called before it is queued."""
        for position, embedding in known.items():
            self.embeddings[position] = embedding
        self.positions = [position for position in self.positions if position not in known]
        self.tokens = sum(len(self.sequences[position]) for position in self.positions)
        self.unanswered = len(self.positions)


class QueuedText(NamedTuple):
    """A text in the queue, compared by ``tag``, then by ``number``, which is unique."""

    tag: float
    number: int
    request: PendingRequest
    position: int
    sequence: Sequence[int]


@dataclass(slots=True)
class BatchLimits:
    """How large a batch may be, and what padding costs.

    ``run_cost_tokens`` is the fixed cost of a run in tokens: the padding worth taking to save a
    run. ``packed``, which may be set at any time, says that the encoder works on packed tokens.
    """

    max_tokens: int  # padded: rows x longest row
    max_texts: int
    run_cost_tokens: int
    packed: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The limits that the settings name, with what a run costs on their device."""
        return cls(
            max_tokens=settings.max_batch_tokens,
            max_texts=settings.max_batch_texts,
            run_cost_tokens=RUN_COST_TOKENS[settings.processor],
        )

    def padding_is_worth_it(self, padding: int, longest: int) -> bool:
        """Whether ``padding`` tokens, beside ``longest`` in a text, cost at most another run."""
        cost = min(1.0, max(PACKED_PADDING_COST, longest / PACKED_PADDING_COST_1_AT))
        return padding * (cost if self.packed else 1.0) <= self.run_cost_tokens


class FairQueue:
    """The waiting texts of one lane. Not safe to share: the batcher holds its lock.

    Forming a batch takes O(lengths * log(lengths) + batch * log(waiting)) steps, where lengths are
    the distinct ones that wait, of all depths.
    """

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._heaps: dict[Shape, list[QueuedText]] = {}  # none is empty
        self._waiting: dict[PendingRequest, int] = {}  # how many texts of each, oldest first
        self._numbers = 0
        self._virtual_time = 0.0
        self.texts = self.tokens = 0

    @property
    def oldest(self) -> PendingRequest | None:
        """The request that has waited longest."""
        return next(iter(self._waiting), None)

    def push(self, request: PendingRequest, positions: Sequence[int]) -> None:
        """Queue the texts of a request at these positions."""
        tag, tokens = self._virtual_time, 0
        for position in positions:
            sequence = request.sequences[position]
            length = len(sequence)
            heap = self._heaps.setdefault(_shape(request, length), [])
            heapq.heappush(heap, QueuedText(tag, self._numbers, request, position, sequence))
            self._numbers += 1
            tag += length
            tokens += length
        self._waiting[request] = 0
        self._count(request, len(positions), tokens)

    def drop(self, request: PendingRequest) -> None:
        if request not in self._waiting:
            return
        shapes = {_shape(request, len(sequence)) for sequence in request.sequences}
        texts = tokens = 0
        for shape in shapes & self._heaps.keys():
            heap = self._heaps[shape]
            rest = [text for text in heap if text.request is not request]
            texts += len(heap) - len(rest)
            tokens += (len(heap) - len(rest)) * shape[-1]
            heapq.heapify(rest)
            self._heaps[shape] = rest
        self._remove_empty_heaps()
        self._count(request, -texts, -tokens)

    def take(self, max_texts: int) -> list[QueuedText]:
        """Take the leader, then the texts nearest to it in length while padding is worth it."""
        depth, weights, longest = min(self._heaps, key=lambda shape: self._heaps[shape][0])
        heaps = {of[2]: heap for of, heap in self._heaps.items() if of[:2] == (depth, weights)}
        lengths = sorted(heaps)
        shorter = bisect_left(lengths, longest)  # the leader's length, then downwards
        longer = shorter + 1
        batch = [heapq.heappop(heaps[longest])]
        padding = 0
        while len(batch) < max_texts:
            while shorter >= 0 and not heaps[lengths[shorter]]:
                shorter -= 1
            while longer < len(lengths) and not heaps[lengths[longer]]:
                longer += 1
            below = lengths[shorter] if shorter >= 0 else 0
            above = lengths[longer] if longer < len(lengths) else 0
            length, added = self._nearest(longest, len(batch), below, above)
            padding += added
            longest = max(longest, length)
            if not length or not self._limits.padding_is_worth_it(padding, longest):
                break
            batch.append(heapq.heappop(heaps[length]))
        self._remove_empty_heaps()
        self._account(batch)
        return batch

    def _nearest(self, longest: int, count: int, below: int, above: int) -> tuple[int, int]:
        """The waiting length that fits with less padding, and that padding; (0, 0) if none fits."""
        room = self._limits.max_tokens // (count + 1)  # the longest text that one more text allows
        best = (0, 0)
        if below and longest <= room:
            best = (below, longest - below)
        if above and above <= room:
            added = count * (above - longest)
            if not best[0] or added < best[1]:
                best = (above, added)
        return best

    def _account(self, batch: list[QueuedText]) -> None:
        for text in batch:
            text.request.started = True
            length = len(text.sequence)
            self._virtual_time += length / len(self._waiting)
            self._count(text.request, -1, -length)

    def _count(self, request: PendingRequest, texts: int, tokens: int) -> None:
        """Count so many more texts and tokens of a request as waiting."""
        self.texts += texts
        self.tokens += tokens
        self._waiting[request] += texts
        if not self._waiting[request]:
            del self._waiting[request]

    def _remove_empty_heaps(self) -> None:
        self._heaps = {shape: heap for shape, heap in self._heaps.items() if heap}


def _shape(request: PendingRequest, length: int) -> Shape:
    return request.depth, request.weights, length
