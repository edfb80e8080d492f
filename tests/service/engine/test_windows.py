"""A text longer than the model reads is embedded as the mean of its windows, where it is asked."""

import numpy as np
import pytest

from s2sent.model.runtime.windows import Windows
from s2sent.service.errors import InferenceFailed, PayloadTooLarge
from tests.support.fake_model import POISON, serving, vector

pytestmark = pytest.mark.usefixtures("form")

LONG = "abcdefgh" * 10  # 80 tokens of the fake tokenizer, whose windows have 32
PARTS = [LONG[:32], LONG[32:64], LONG[64:]]
FOUR = Windows(most=4, overlap=0)


def mean(parts: list[str]) -> list[float]:
    lengths = [len(part) for part in parts]
    rows = np.array([vector(part) for part in parts])
    average: list[float] = (np.average(rows, axis=0, weights=lengths)).astype(np.float32).tolist()
    return average


async def test_a_long_text_has_the_mean_of_its_windows_by_their_tokens() -> None:
    async with serving() as harness:
        result = await harness.embed(["short", LONG, "1"], windows=FOUR)
    assert result.embeddings.tolist() == [vector("short"), mean(PARTS), vector("1")]
    assert result.tokens == [5, 80, 1]
    assert result.truncated == [False] * 3
    assert result.windows == [1, 3, 1]
    assert harness.value("tokens_total") == 86


async def test_what_is_longer_than_all_windows_is_cut_and_counted() -> None:
    async with serving() as harness:
        result = await harness.embed([LONG], windows=Windows(most=2, overlap=0))
    assert result.embeddings.tolist() == [mean(PARTS[:2])]
    assert (result.tokens, result.truncated, result.windows) == ([64], [True], [2])


async def test_windows_are_found_in_the_cache() -> None:
    async with serving(cache_bytes=1_000_000) as harness:
        first = await harness.embed([LONG], windows=FOUR)
        again = await harness.embed([LONG], windows=FOUR)
        assert again.embeddings.tolist() == first.embeddings.tolist()
        assert harness.value("cache_hits_total") == 3


async def test_a_window_that_fails_is_the_error_of_its_text() -> None:
    bad = "a" * 40 + POISON
    async with serving() as harness:
        texts = ["one", bad, "two", ""]
        result = await harness.embed(texts, windows=FOUR, skip_failed=True)
        assert {at: error.message for at, error in result.errors.items()} == {
            1: "The encoder failed on input 1. Leave it out.",
            3: "Input 3 is empty. Send a text, or leave it out.",
        }
        assert [result.embeddings[at].tolist() for at in (0, 2)] == [vector("one"), vector("two")]
        assert result.tokens == [3, 0, 3, 0]
        with pytest.raises(InferenceFailed):
            await harness.embed(["one", bad], windows=FOUR)


async def test_windows_of_a_request_are_limited_as_its_texts_are() -> None:
    async with serving(max_client_batch_size=4) as harness:
        message = "The 2 texts of the request are 6 windows; the limit is 4"
        with pytest.raises(PayloadTooLarge, match=message):
            await harness.embed([LONG, LONG], windows=FOUR)
        assert (await harness.embed([LONG, "a"], windows=FOUR)).windows == [3, 1]
