"""skip_failed: a text that cannot be embedded has its error, and the others their embeddings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from s2sent.service.engine.types import EmbedResult
from s2sent.service.errors import EmptyInput, InferenceFailed, InvalidInput
from tests.support.fake_model import (
    MISSHAPEN,
    NOT_A_NUMBER,
    OUT_OF_MEMORY,
    POISON,
    outcome,
    serving,
    vector,
)

pytestmark = pytest.mark.usefixtures("form")

LONG = "x" * 33


def check(texts: list[str], result: EmbedResult) -> None:
    """Every text has its own embedding or an error, and only those at fault have one."""
    troubled = {POISON, OUT_OF_MEMORY, NOT_A_NUMBER}
    for index, text in enumerate(texts):
        error = result.errors.get(index)
        if not text:
            assert isinstance(error, EmptyInput)
        elif len(text) > 32:
            assert isinstance(error, InvalidInput)
            assert error.message == f"input {index} has {len(text)} tokens; the limit is 32."
        elif troubled & {*text}:
            assert isinstance(error, InferenceFailed)
        else:
            assert error is None
            assert result.embeddings[index].tolist() == vector(text)
        assert (result.tokens[index] == 0) == (error is not None)


@pytest.mark.parametrize("trouble", [POISON, OUT_OF_MEMORY, NOT_A_NUMBER])
@pytest.mark.parametrize("cache_bytes", [0, 10_000])
async def test_only_the_text_at_fault_has_an_error(trouble: str, cache_bytes: int) -> None:
    texts = ["aaa", "bb" + trouble, "", "ccc", LONG, "aaa"]
    async with serving(cache_bytes=cache_bytes) as harness:
        for _ in range(2):  # the second time from the cache, where there is one
            task = harness.send(*texts, skip_failed=True, truncate=False)
            result = await outcome(task)
            assert isinstance(result, EmbedResult)
            check(texts, result)
        assert harness.value("queue_tokens") == 0
        assert harness.engine.readiness().ready


@hypothesis_settings(max_examples=25)
@given(
    texts=st.lists(
        st.sampled_from(["", "a", "bb", "ccc", LONG, POISON, "d" + NOT_A_NUMBER]), min_size=1
    )
)
async def test_any_mix_of_texts_is_answered(texts: list[str]) -> None:
    async with serving() as harness:
        result = await outcome(harness.send(*texts, skip_failed=True, truncate=False))
        assert isinstance(result, EmbedResult)
        check(texts, result)


async def test_a_neighbour_that_is_all_or_nothing_fails_alone() -> None:
    async with serving() as harness:
        held = await harness.hold()
        skipping = harness.send("a" + POISON, "b", skip_failed=True)
        failing = harness.send("c" + POISON, "d")
        await harness.queued(4)
        harness.encoder.gate.set()
        await held
        result = await outcome(skipping)
        assert isinstance(result, EmbedResult)
        check(["a" + POISON, "b"], result)
        assert isinstance(await outcome(failing), InferenceFailed)
    assert harness.value("requests_failed_total", reason="inference_error") == 1


async def test_output_of_the_wrong_shape_is_an_error_of_every_text_of_the_batch() -> None:
    async with serving() as harness:
        result = await outcome(harness.send("a", MISSHAPEN, skip_failed=True))
        assert isinstance(result, EmbedResult)
        assert {*result.errors} == {0, 1}


async def test_prompts_do_not_fill_empty_texts() -> None:
    async with serving() as harness:
        result = await outcome(harness.send("", "a", prompt="q: ", skip_failed=True))
        assert isinstance(result, EmbedResult)
        assert {*result.errors} == {0}
        assert np.array_equal(result.embeddings[1], np.array(vector("q: a"), np.float32))
