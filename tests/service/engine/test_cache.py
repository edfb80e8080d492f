"""What is kept, what is forgotten, and that it is never another text's embedding."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from s2sent.service.engine.cache import ENTRY_BYTES, Embedding, EmbeddingCache


def embedding(sequence: list[int]) -> Embedding:
    return np.array([len(sequence), sum(sequence)], dtype=np.float32)


def size(sequence: list[int]) -> int:
    return 4 * (1 + len(sequence)) + embedding(sequence).nbytes + ENTRY_BYTES


def keep(cache: EmbeddingCache, *sequences: list[int]) -> None:
    cache.keep(sequences, {i: embedding(one) for i, one in enumerate(sequences)})


def test_what_was_kept_is_found_at_its_position() -> None:
    cache = EmbeddingCache(10_000)
    keep(cache, [1, 2, 3], [4])
    found = cache.find([[9], [4], [1, 2, 3]])
    assert {position: row.tolist() for position, row in found.items()} == {1: [1, 4], 2: [3, 6]}


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    cache = EmbeddingCache(2 * size([1]))
    keep(cache, [1], [2])
    cache.find([[1]])
    keep(cache, [3])
    assert list(cache.find([[1], [2], [3]])) == [0, 2]


def test_what_does_not_fit_by_itself_is_not_kept_and_drives_nothing_out() -> None:
    cache = EmbeddingCache(size([1]))
    keep(cache, [1])
    keep(cache, [1] * 500)
    assert list(cache.find([[1], [1] * 500])) == [0]


def test_a_kept_row_does_not_change_with_the_array_it_came_from() -> None:
    cache = EmbeddingCache(10_000)
    rows = np.ones((1, 2), dtype=np.float32)
    cache.keep([[5]], {0: rows[0]})
    rows[:] = 7
    assert cache.find([[5]])[0].tolist() == [1, 1]


sequences = st.lists(st.integers(0, 70_000), min_size=1, max_size=6)


@given(st.lists(sequences, max_size=40), st.integers(400, 3_000))
def test_memory_is_bounded_and_counted_and_every_hit_is_right(
    texts: list[list[int]], max_bytes: int
) -> None:
    cache = EmbeddingCache(max_bytes)
    for text in texts:
        for row in cache.find([text]).values():
            assert row.tolist() == embedding(text).tolist()
        keep(cache, text)
        assert cache.bytes <= max_bytes
    kept = [text for text in {tuple(t): t for t in texts}.values() if cache.find([text])]
    assert cache.bytes == sum(map(size, kept))
