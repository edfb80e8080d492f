"""A cache of embeddings in memory, with least recently used eviction, in front of the queue."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from s2sent.service.engine.inference.batcher import Batcher
from s2sent.service.engine.inference.fair_queue import PendingRequest
from s2sent.service.telemetry.metrics import Metrics

Embedding = NDArray[np.float32]  # [dim], not normalised

# Memory of an entry besides its numbers: key, array, link and slot of the dictionary.
ENTRY_BYTES = 400


class EmbeddingCache:
    """Embeddings by token ids and depth, in at most ``max_bytes``. Not safe to share.

    Token ids are all that the encoder sees of a text, so equal ids have equal embeddings at equal
    depth. An embedding larger than ``max_bytes`` is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._embeddings: OrderedDict[bytes, Embedding] = OrderedDict()  # oldest use first
        self.bytes = 0

    def find(
        self, sequences: Sequence[Sequence[int]], *, depth: int | None = None
    ) -> dict[int, Embedding]:
        """Return the embeddings that are cached, by their position in ``sequences``."""
        found = {}
        for position, sequence in enumerate(sequences):
            key = _key(sequence, depth)
            embedding = self._embeddings.get(key)
            if embedding is not None:
                self._embeddings.move_to_end(key)
                found[position] = embedding
        return found

    def keep(
        self,
        sequences: Sequence[Sequence[int]],
        embeddings: Mapping[int, Embedding],
        *,
        depth: int | None = None,
    ) -> None:
        """Keep copies of ``embeddings``, given by position; evict the least recently used."""
        for position, embedding in embeddings.items():
            key = _key(sequences[position], depth)
            size = _size(key, embedding)
            if key in self._embeddings or size > self._max_bytes:
                continue
            self._embeddings[key] = (
                embedding.copy()
            )  # not a view that would keep a whole request alive
            self.bytes += size
            while self.bytes > self._max_bytes:
                self.bytes -= _size(*self._embeddings.popitem(last=False))


def _key(sequence: Sequence[int], depth: int | None) -> bytes:
    return np.asarray([depth or 0, *sequence], dtype=np.int32).tobytes()


def _size(key: bytes, embedding: Embedding) -> int:
    return len(key) + embedding.nbytes + ENTRY_BYTES


class CachingBatcher(Batcher):
    """A batcher that queues the texts whose embeddings are not in its cache.

    `submit` is to be called on one event loop. Block weights are not kept.
    """

    def __init__(self, cache: EmbeddingCache, metrics: Metrics, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cache = cache
        self._metrics = metrics

    def submit(self, *parts: PendingRequest) -> bool:
        """`Batcher.submit` of what is not known; nothing is left to wait for in a part that is."""
        if parts[0].weights:
            return super().submit(*parts)
        asked = sum(len(part.positions) for part in parts)
        for part in parts:
            found = self._cache.find(
                [part.sequences[position] for position in part.positions], depth=part.depth
            )
            part.fill({part.positions[at]: embedding for at, embedding in found.items()})
        waiting = [part for part in parts if part.positions]
        if waiting and not super().submit(*waiting):
            return False
        for part in waiting:
            part.keep = self._keep
        misses = sum(len(part.positions) for part in waiting)
        self._metrics.cache_hits.inc(asked - misses)
        self._metrics.cache_misses.inc(misses)
        return True

    def _keep(self, part: PendingRequest) -> None:
        embedded = (position for position in part.positions if position not in (part.errors or ()))
        rows = {position: part.embeddings[position] for position in embedded}
        self._cache.keep(part.sequences, rows, depth=part.depth)
