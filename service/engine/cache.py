"""Embeddings kept in memory, so that a text that comes again need not be run again."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Embedding = NDArray[np.float32]  # [dim], not normalised

# What an entry takes beside its numbers: key, array, link and slot of the dictionary.
ENTRY_BYTES = 400


class EmbeddingCache:
    """The embeddings used last, by token ids, in at most ``max_bytes``. For one thread.

    Token ids are what the encoder sees: prompt, truncation and spelling are in them, so equal ids
    have equal embeddings at equal depth. What does not fit by itself is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rows: OrderedDict[bytes, Embedding] = OrderedDict()  # oldest use first
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def find(
        self, sequences: Sequence[Sequence[int]], *, depth: int | None = None
    ) -> dict[int, Embedding]:
        """Returns the embeddings that are there, by their position in ``sequences``."""
        found = {}
        for position, sequence in enumerate(sequences):
            key = _key(sequence, depth)
            row = self._rows.get(key)
            if row is not None:
                self._rows.move_to_end(key)
                found[position] = row
        return found

    def keep(
        self,
        sequences: Sequence[Sequence[int]],
        rows: Mapping[int, Embedding],
        *,
        depth: int | None = None,
    ) -> None:
        """Keeps copies of ``rows``, given by position, and forgets what was used longest ago."""
        for position, row in rows.items():
            key = _key(sequences[position], depth)
            size = _size(key, row)
            if key in self._rows or size > self._max_bytes:
                continue
            self._rows[key] = row.copy()  # not a view that would keep a whole request alive
            self.bytes += size
            while self.bytes > self._max_bytes:
                self.bytes -= _size(*self._rows.popitem(last=False))


def _key(sequence: Sequence[int], depth: int | None) -> bytes:
    return np.asarray([depth or 0, *sequence], dtype=np.int32).tobytes()


def _size(key: bytes, row: Embedding) -> int:
    return len(key) + row.nbytes + ENTRY_BYTES
