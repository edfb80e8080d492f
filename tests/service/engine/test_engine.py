"""Every accepted request is answered once, with its own vectors or an error of its own."""

import asyncio
import gc
import hashlib
import json
import shutil
import time
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from s2sent.model.artifact.manifest import TOKENIZER, Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.service.engine.engine import Engine
from s2sent.service.engine.inference import workers as worker
from s2sent.service.engine.inference.fair_queue import PendingRequest
from s2sent.service.engine.inference.model import EngineStartFailed, LoadedModel
from s2sent.service.engine.inference.start_step import start_step
from s2sent.service.engine.tokenization import INLINE_CHARACTERS, SLICE_CHARACTERS
from s2sent.service.engine.types import EmbedResult, OtherTexts
from s2sent.service.errors import (
    DeadlineExceeded,
    EmptyInput,
    InferenceFailed,
    InvalidInput,
    NotReady,
    Overloaded,
    ServiceError,
)
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics
from s2sent.service.threads import Panic
from tests.support.fake_model import (
    DIM,
    FOREVER_SECONDS,
    LETHAL,
    MISSHAPEN,
    NOT_A_NUMBER,
    OUT_OF_MEMORY,
    PANIC,
    PATIENCE_SECONDS,
    POISON,
    ZERO,
    Clock,
    Harness,
    outcome,
    serving,
    vector,
)

pytestmark = pytest.mark.usefixtures("form")

# --- answers ---


async def test_request_gets_its_own_vectors_in_order() -> None:
    async with serving() as harness:
        result = await harness.embed(["one", "three", "two", "one"])
    assert result.embeddings.tolist() == [vector(t) for t in ("one", "three", "two", "one")]
    assert result.tokens == [3, 5, 3, 3]


async def test_prompt_and_truncation_reach_the_tokenizer() -> None:
    async with serving() as harness:
        result = await harness.embed(["b" * 40], prompt="a")
    assert result.embeddings.tolist() == [vector("a" + "b" * 31)]
    assert result.truncated == [True]
    assert harness.value("truncated_texts_total") == 1


async def test_the_other_texts_of_a_request_have_a_prompt_of_their_own() -> None:
    async with serving() as harness:
        others = OtherTexts(["b", "c"], None, "to ")
        result = await harness.embed(["b"], prompt="of ", others=others)
        assert result.embeddings.tolist() == [vector(t) for t in ("of b", "to b", "to c")]
        long = OtherTexts(["b", "c" * 40], None, "to ")
        with pytest.raises(InvalidInput, match=r"^input 2 has 43 tokens"):
            await harness.embed(["b"], prompt="of ", others=long, truncate=False)


async def test_request_larger_than_a_batch_is_answered_whole() -> None:
    texts = [f"text {number}" for number in range(200)]
    async with serving(max_queue_tokens=100_000) as harness:
        result = await harness.embed(texts)
    assert result.embeddings.tolist() == [vector(text) for text in texts]
    assert len(harness.encoder.batches) >= 25


async def test_lone_request_runs_at_once_and_alone() -> None:
    async with serving() as harness:
        await harness.embed(["alone"])
    assert harness.encoder.batches == [["alone"]]


async def test_what_comes_during_a_run_joins_the_next() -> None:
    async with serving() as harness:
        held = await harness.hold()
        tasks = [harness.send(text) for text in ("a", "b", "c")]
        await harness.queued(3)
        harness.encoder.gate.set()
        await asyncio.gather(held, *tasks)
    assert sorted(map(len, harness.encoder.batches)) == [1, 3]


async def test_single_text_does_not_wait_for_the_whole_of_a_long_request() -> None:
    async with serving(max_queue_tokens=100_000) as harness:
        harness.encoder.gate.clear()
        bulk = harness.send(*["bulky"] * 500)
        await harness.encoder.until_entered()
        single = harness.send("small")
        await harness.queued(500 - 8 + 1)
        harness.encoder.gate.set()
        await asyncio.gather(bulk, single)
    assert any("small" in batch for batch in harness.encoder.batches[:3])


# --- tokens and texts of ids ---

LONG = "x" * SLICE_CHARACTERS


async def test_tokens_and_texts_come_in_order_over_several_slices() -> None:
    async with serving() as harness:
        texts = [LONG, "a", LONG + "b", "c"]
        spans = await harness.tokenize(texts, add_special_tokens=False)
        assert spans == [len(text) for text in texts]
        ids = [[ord("a")] * SLICE_CHARACTERS, [0, ord("b")]]
        decoded = await harness.engine.apply_tokenizer(
            lambda tokenizer, each: tokenizer.decode(each, skip_special_tokens=True), ids
        )
        assert decoded == ["a" * SLICE_CHARACTERS, "b"]


async def test_long_texts_are_split_in_one_thread_of_their_own() -> None:
    """Their work holds Python's lock; no text to embed waits behind it."""
    async with serving() as harness:
        harness.tokenizer.threads.clear()
        await asyncio.gather(*(harness.tokenize([LONG]) for _ in range(3)))
        await harness.engine.apply_tokenizer(lambda _, ids: len(ids), [[1] * SLICE_CHARACTERS])
        assert harness.tokenizer.threads == {"token-spans_0"}


async def test_long_work_leaves_the_loop_free() -> None:
    """The loop itself lets the work go on; on the loop, the work would wait for ever."""
    async with serving() as harness:
        harness.tokenizer.gate.clear()
        running = asyncio.create_task(harness.tokenize([LONG]))
        await harness.until(lambda: harness.tokenizer.calls == 1)
        harness.tokenizer.gate.set()
        assert await running == [len(LONG) + 1]


async def test_requests_for_tokens_share_the_limit_of_requests_in_flight() -> None:
    async with serving(max_concurrent_requests=1) as harness:
        harness.tokenizer.gate.clear()
        running = asyncio.create_task(harness.tokenize([LONG]))
        await harness.until(lambda: harness.tokenizer.calls == 1)
        for work in (harness.tokenize(["a"]), harness.embed(["a"])):
            with pytest.raises(Overloaded) as refusal:
                await work
            assert refusal.value.retry_after_seconds == 1
        harness.tokenizer.gate.set()
        await running
        assert harness.value("requests_rejected_total", reason="concurrency") == 2
        assert await harness.tokenize(["a"]) == [2]


async def test_a_full_queue_keeps_nobody_from_tokens() -> None:
    """They do not enter it."""
    async with serving(max_queue_tokens=64) as harness:
        held = await harness.hold()
        waiting = harness.send(*["x" * 30] * 50)
        await harness.queued(50)
        assert await harness.tokenize(["ab"]) == [3]
        harness.encoder.gate.set()
        await asyncio.gather(held, waiting)


async def test_the_deadline_holds_for_tokens() -> None:
    async with serving() as harness:
        harness.tokenizer.gate.clear()
        with pytest.raises(DeadlineExceeded):
            await harness.tokenize([LONG], timeout_seconds=0.01)
        assert harness.value("requests_timed_out_total", stage="tokenize") == 1


async def test_a_caller_that_leaves_ends_the_work_with_its_slice() -> None:
    async with serving() as harness:
        harness.tokenizer.gate.clear()
        running = asyncio.create_task(harness.tokenize([LONG] * 3))
        await harness.until(lambda: harness.tokenizer.calls == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        harness.tokenizer.gate.set()
        assert await harness.tokenize(["a"]) == [2]
        assert harness.tokenizer.calls == 2
        assert harness.value("requests_cancelled_total", stage="tokenize") == 1


# --- refusals ---


@pytest.mark.parametrize(
    ("texts", "options", "error"),
    [
        (["a", ""], {}, EmptyInput),
        ([[]], {}, EmptyInput),
        (["a" * 33], {"truncate": False}, InvalidInput),
    ],
)
async def test_unusable_input_is_refused(
    texts: list[str], options: dict[str, Any], error: type[ServiceError]
) -> None:
    async with serving(max_client_batch_size=8) as harness:
        with pytest.raises(error):
            await harness.embed(texts, **options)
    assert harness.encoder.batches == []


async def test_full_queue_answers_429_with_the_seconds_the_backlog_takes() -> None:
    async with serving(Clock(), max_queue_tokens=64) as harness:
        await harness.send("measured")
        held = await harness.hold()
        waiting = harness.send(*["x" * 20] * 3)
        await harness.queued(3)
        refused = await outcome(harness.send("12345"))
        assert isinstance(refused, Overloaded)
        # 1 s for the 8 tokens that were measured and a run, which counts as 12 tokens; so 60 tokens
        # and a run are 3.6 s.
        assert refused.retry_after_seconds == 4
        assert "60 interactive tokens are waiting, of 64 that may; this request has 5." in str(
            refused
        )
        assert harness.value("requests_rejected_total", reason="queue_full") == 1
        harness.encoder.gate.set()
        await asyncio.gather(held, waiting)


async def test_queue_that_is_full_already_refuses_before_tokenising() -> None:
    async with serving(Clock(), max_queue_tokens=64, interactive_texts=50) as harness:
        await harness.send("measured")
        held = await harness.hold()
        waiting = harness.send(*["x" * 30] * 50)
        await harness.queued(50)
        calls = harness.tokenizer.calls
        refused = await outcome(harness.send("y"))
        assert isinstance(refused, Overloaded)
        assert refused.retry_after_seconds == 60  # 1500 tokens and 24 runs would be 89 s: clamped
        assert harness.tokenizer.calls == calls
        harness.encoder.gate.set()
        await asyncio.gather(held, waiting)


async def test_request_above_the_concurrency_limit_gets_429() -> None:
    async with serving(max_concurrent_requests=2) as harness:
        tasks = [await harness.hold(), harness.send("second")]
        await harness.queued(1)
        assert isinstance(await outcome(harness.send("third")), Overloaded)
        assert harness.value("requests_rejected_total", reason="concurrency") == 1
        harness.encoder.gate.set()
        await asyncio.gather(*tasks)


async def test_nothing_is_taken_before_the_start() -> None:
    harness = Harness()
    assert harness.engine.readiness().reason == "starting"
    with start_step("fetching a model"):
        assert harness.engine.readiness().reason == "starting (fetching a model)"
    assert isinstance(await outcome(harness.send("early")), NotReady)
    assert harness.value("requests_rejected_total", reason="not_ready") == 1
    assert await harness.engine.drain(0)


# --- cancelling and deadlines ---


async def test_cancelled_while_queued_gives_its_room_back_and_never_runs() -> None:
    async with serving() as harness:
        held = await harness.hold()
        leaving = harness.send("leaving")
        await harness.queued(1)
        leaving.cancel()
        await harness.queued(0)
        harness.encoder.gate.set()
        await held
    assert harness.encoder.batches == [["held"]]
    assert harness.value("requests_cancelled_total", stage="queue") == 1


async def test_cancelled_while_tokenising_is_counted_there() -> None:
    async with serving() as harness:
        harness.tokenizer.gate.clear()
        leaving = harness.send("x" * (INLINE_CHARACTERS + 1))
        await harness.until(lambda: harness.tokenizer.calls == 1)
        leaving.cancel()
        await asyncio.wait([leaving])
    assert harness.value("requests_cancelled_total", stage="tokenize") == 1


async def test_cancelled_while_running_leaves_its_neighbours_alone() -> None:
    async with serving() as harness:
        held = await harness.hold()
        leaving, staying = harness.send("leaving"), harness.send("staying")
        await harness.queued(2)
        harness.encoder.let_one_run()
        await harness.encoder.until_entered()
        leaving.cancel()
        await asyncio.wait([leaving])
        harness.encoder.gate.set()
        await held
        assert (await staying).embeddings.tolist() == [vector("staying")]
    assert harness.value("requests_cancelled_total", stage="inference") == 1


async def test_deadline_is_answered_also_while_the_encoder_hangs() -> None:
    async with serving() as harness:
        harness.encoder.gate.clear()
        assert isinstance(
            await outcome(harness.send("stuck", timeout_seconds=0.01)), DeadlineExceeded
        )
        assert isinstance(
            await outcome(harness.send("behind", timeout_seconds=0.01)), DeadlineExceeded
        )
        await harness.until(lambda: harness.value("queue_tokens") == 0)
        assert harness.value("requests_timed_out_total", stage="queue") >= 1


async def test_deadline_counts_also_while_tokenising() -> None:
    async with serving() as harness:
        harness.tokenizer.gate.clear()
        error = await outcome(harness.send("x" * (INLINE_CHARACTERS + 1), timeout_seconds=0.01))
    assert isinstance(error, DeadlineExceeded)
    assert harness.value("requests_timed_out_total", stage="tokenize") == 1


async def test_what_is_done_with_a_result_is_in_flight_until_its_deadline() -> None:
    async with serving() as harness:
        with pytest.raises(DeadlineExceeded):
            async with harness.engine.track(0.01, stage=lambda: "serialize"):
                await asyncio.Event().wait()
        assert harness.value("requests_timed_out_total", stage="serialize") == 1
        async with harness.engine.track(60, stage=lambda: "serialize"):
            draining = asyncio.ensure_future(harness.engine.drain(60))
            done, _ = await asyncio.wait([draining], timeout=0.05)
            assert not done
        assert await draining


# --- failures ---


@pytest.mark.parametrize("trouble", [POISON, OUT_OF_MEMORY, NOT_A_NUMBER, ZERO])
async def test_only_the_guilty_request_of_a_batch_fails(trouble: str) -> None:
    reason = {NOT_A_NUMBER: "non_finite", ZERO: "all_zero"}.get(trouble, "inference_error")
    async with serving() as harness:
        held = await harness.hold()
        tasks = [harness.send(text) for text in ("aaa", "bb" + trouble, "ccc", "ddd", "eee")]
        await harness.queued(5)
        harness.encoder.gate.set()
        await held
        answers = [await outcome(task) for task in tasks]
    assert [type(answer) for answer in answers] == [
        EmbedResult, InferenceFailed, EmbedResult, EmbedResult, EmbedResult
    ]  # fmt: skip
    assert harness.value("requests_failed_total", reason=reason) == 1


async def test_failed_request_stops_running_its_other_texts() -> None:
    async with serving() as harness:
        error = await outcome(harness.send(POISON, *"abcdefghijk"))
        assert isinstance(error, InferenceFailed)
        assert harness.value("queue_tokens") == 0
    assert list(map(len, harness.encoder.batches)) == [8, 4, 2, 1]


async def test_nothing_waits_in_an_engine_whose_threads_are_lost() -> None:
    async with serving() as harness:
        for others in ("", "", "", "abcdefghijklmnop"):
            assert isinstance(await outcome(harness.send(LETHAL, *others)), NotReady)
        await harness.until(lambda: harness.value("queue_tokens") == 0)
        assert not harness.engine.readiness().ready


async def test_output_of_the_wrong_shape_fails_the_batch() -> None:
    async with serving() as harness:
        assert isinstance(await outcome(harness.send("a", MISSHAPEN)), InferenceFailed)
        assert harness.engine.readiness().ready
    assert harness.value("requests_failed_total", reason="wrong_shape") == 1


async def test_batches_run_side_by_side() -> None:
    async with serving(concurrent_runs=2) as harness:
        first = await harness.hold("first")
        second = harness.send("second")
        await harness.encoder.until_entered()  # while the first is still running
        harness.encoder.gate.set()
        assert (await first).embeddings.tolist() == [vector("first")]
        assert (await second).embeddings.tolist() == [vector("second")]


async def test_a_thread_that_dies_leaves_the_other_serving() -> None:
    async with serving(concurrent_runs=2) as harness:
        dying = await harness.hold(LETHAL)
        neighbour = harness.send("neighbour")
        await harness.encoder.until_entered()
        harness.encoder.gate.set()
        assert isinstance(await outcome(dying), NotReady)
        assert (await neighbour).embeddings.tolist() == [vector("neighbour")]
        await harness.until(lambda: harness.engine.readiness().ready)
        assert harness.value("engine_restarts_total") == 1


@pytest.mark.parametrize("trouble", [POISON, NOT_A_NUMBER, MISSHAPEN])
async def test_an_encoder_that_embeds_nothing_any_more_is_found_out(
    tmp_path: Path, trouble: str
) -> None:
    harness = Harness(artifact=artifact(tmp_path, right_canary()))
    await harness.start()
    harness.tokenizer.everything_becomes = trouble
    assert isinstance(await outcome(harness.send("innocent")), InferenceFailed)
    await harness.until(lambda: not harness.engine.readiness().ready)
    await harness.until(lambda: bool(harness.fatal))  # no successor can prove the canary right
    await harness.engine.drain(PATIENCE_SECONDS)


async def test_dead_thread_fails_its_batch_and_its_successor_serves_the_rest() -> None:
    async with serving() as harness:
        held = await harness.hold(LETHAL)
        waiting = harness.send("waiting")
        await harness.queued(1)
        harness.encoder.gate.set()
        assert isinstance(await outcome(held), NotReady)
        assert (await waiting).embeddings.tolist() == [vector("waiting")]
        await harness.until(lambda: harness.engine.readiness().ready)
        assert harness.value("engine_restarts_total") == 1
        assert harness.value("requests_failed_total", reason="engine_died") == 1


async def test_thread_that_keeps_dying_fails_everybody_and_is_reported_once() -> None:
    async with serving(max_batch_texts=1) as harness:
        held = await harness.hold(LETHAL)
        tasks = [harness.send(LETHAL * (number + 2)) for number in range(5)]
        await harness.queued(5)
        harness.encoder.gate.set()
        answers = [await outcome(task) for task in (held, *tasks)]
        assert all(isinstance(answer, NotReady) for answer in answers)
        assert len(harness.fatal) == 1
        assert "died 4 times" in harness.engine.readiness().reason
        assert isinstance(await outcome(harness.send("late")), NotReady)
        await harness.until(lambda: harness.value("queue_tokens") == 0)
        assert harness.value("engine_ready") == 0
        assert harness.value("requests_failed_total", reason="stopped") == 2


async def test_deaths_far_apart_are_forgiven() -> None:
    clock = Clock()
    async with serving(clock) as harness:
        for _ in range(6):
            assert isinstance(await outcome(harness.send(LETHAL)), NotReady)
            clock.now += 30
        assert (await harness.embed(["alive"])).tokens == [5]
        assert harness.fatal == []


@pytest.mark.parametrize("text", [PANIC, PANIC * (INLINE_CHARACTERS + 1)])
async def test_a_panic_of_the_tokenizer_is_an_error_of_its_own_request(text: str) -> None:
    """On the loop and in a thread; PyO3's PanicException is no Exception."""
    async with serving() as harness:
        with pytest.raises(Panic):
            await harness.embed([text])
        with pytest.raises(Panic):
            await harness.tokenize([text])
        assert (await harness.embed(["alive"])).tokens == [5]


# --- running nothing twice ---


async def test_equal_texts_that_wait_together_are_run_once() -> None:
    async with serving() as harness:
        held = await harness.hold()
        tasks = [harness.send("same", "other"), harness.send("same")]
        await harness.queued(3)
        harness.encoder.gate.set()
        both, one = await asyncio.gather(*tasks)
        await held
        assert both.embeddings.tolist() == [vector("same"), vector("other")]
        assert one.embeddings.tolist() == [vector("same")]
        assert sum(batch.count("same") for batch in harness.encoder.batches) == 1
        assert harness.value("coalesced_texts_total") == 1


async def test_text_that_comes_again_is_not_run_again() -> None:
    async with serving(cache_bytes=10_000) as harness:
        await harness.embed(["known"])
        result = await harness.embed(["new", "known"])
        assert result.embeddings.tolist() == [vector("new"), vector("known")]
        assert (await harness.embed(["known"])).tokens == [5]
        assert harness.encoder.batches == [["known"], ["new"]]
        assert harness.value("cache_hits_total") == harness.value("cache_misses_total") == 2
        assert harness.value("cache_bytes") > 0


async def test_text_is_kept_for_the_depth_it_was_run_at() -> None:
    async with serving(cache_bytes=10_000) as harness:
        for depth in (None, 2, 4, 2, None):
            result = await harness.embed(["same"], depth=depth)
            assert result.embeddings.tolist() == [vector("same", depth)]
        assert harness.encoder.batches == [["same"]] * 3


async def test_texts_and_run_time_are_counted_by_depth() -> None:
    async with serving() as harness:
        for depth, texts in ((None, ["a"]), (2, ["b", "c"]), (2, ["d"])):
            await harness.embed(texts, depth=depth)
        value = harness.metrics.registry.get_sample_value
        for label, count, batches in (("full", 1, 1), ("2", 3, 2)):
            assert value("s2sent_batch_texts_sum", {"depth": label}) == count
            assert value("s2sent_batch_duration_seconds_count", {"depth": label}) == batches


async def test_texts_of_two_depths_are_not_run_together() -> None:
    async with serving() as harness:
        held = await harness.hold()
        depths = [None, 2, 4, 2, None]
        tasks = [harness.send("same", "other", depth=depth) for depth in depths]
        await harness.queued(10)
        harness.encoder.gate.set()
        for depth, task in zip(depths, tasks, strict=True):
            expected = [vector("same", depth), vector("other", depth)]
            assert (await task).embeddings.tolist() == expected
        await held
        assert harness.encoder.batches == [["held"], *[["same", "other"]] * 3]


async def test_one_request_for_two_depths_is_admitted_once() -> None:
    async with serving(max_concurrent_requests=2) as harness:
        held = await harness.hold()
        two = asyncio.create_task(
            harness.embed(["a", "b"], depth=2, others=OtherTexts(["b", "c"], None, ""))
        )
        await harness.queued(4)
        draining = asyncio.create_task(harness.engine.drain(PATIENCE_SECONDS))
        await asyncio.sleep(0)
        harness.encoder.gate.set()
        result = await two
        assert result.embeddings.tolist() == [
            *(vector(text, 2) for text in "ab"),
            *(vector(text) for text in "bc"),
        ]
        assert result.tokens == [len(ids) for ids in result.token_ids]
        assert await draining
        await held


async def test_a_request_for_two_depths_that_does_not_fit_leaves_nothing_behind() -> None:
    """An empty queue takes it whatever its size."""
    texts, others = ["a" * 30], OtherTexts(["b" * 30, "c" * 30], None, "")
    async with serving(max_queue_tokens=64) as harness:
        held = await harness.hold()
        waiting = harness.send("waiting")
        await harness.queued(1)
        refused = harness.embed(texts, depth=2, others=others)
        assert isinstance(await outcome(asyncio.create_task(refused)), Overloaded)
        harness.encoder.gate.set()
        await asyncio.gather(held, waiting)
        assert harness.encoder.batches == [["held"], ["waiting"]]
        result = await harness.embed(texts, depth=2, others=others)
        expected = [vector("a" * 30, 2), vector("b" * 30), vector("c" * 30)]
        assert result.embeddings.tolist() == expected


async def test_both_depths_of_a_request_may_fail(caplog: pytest.LogCaptureFixture) -> None:
    others = OtherTexts([POISON], None, "")
    async with serving() as harness:
        both = asyncio.create_task(harness.embed([POISON], depth=2, others=others))
        assert isinstance(await outcome(both), InferenceFailed)
        await harness.embed(["behind them"])
    gc.collect()
    assert "exception was never retrieved" not in caplog.text


async def test_a_request_of_which_one_depth_runs_is_in_inference() -> None:
    async with serving() as harness:
        harness.encoder.gate.clear()
        embedding = harness.embed(["a"], depth=2, others=OtherTexts(["b"], None, ""))
        both = asyncio.create_task(embedding)
        await harness.encoder.until_entered()
        both.cancel()
        await asyncio.wait([both])
        harness.encoder.gate.set()
    assert harness.value("requests_cancelled_total", stage="inference") == 1


async def test_no_request_outlives_its_answer() -> None:
    """A thread that waits for the next batch would keep the embeddings of the last one."""

    def requests() -> int:
        gc.collect()
        return sum(type(each) is PendingRequest for each in gc.get_objects())

    async with serving() as harness:
        before = requests()
        await harness.embed(["a"])
        await harness.until(lambda: requests() <= before)


async def test_without_a_cache_every_text_is_run() -> None:
    async with serving() as harness:
        await harness.embed(["again"])
        await harness.embed(["again"])
        assert harness.encoder.batches == [["again"], ["again"]]
        assert harness.value("cache_hits_total") == harness.value("cache_misses_total") == 0


async def test_failed_text_is_not_kept() -> None:
    async with serving(cache_bytes=10_000) as harness:
        assert isinstance(await outcome(harness.send(NOT_A_NUMBER)), InferenceFailed)
        assert isinstance(await outcome(harness.send(NOT_A_NUMBER)), InferenceFailed)
        assert harness.value("cache_bytes") == 0


# --- readiness ---


async def test_run_that_takes_too_long_turns_readiness_red() -> None:
    clock = Clock()
    async with serving(clock, stall_timeout_seconds=60) as harness:
        held = await harness.hold()
        assert harness.engine.readiness().ready
        waiting = harness.send("waiting")
        await harness.queued(1)
        clock.now += 61
        assert harness.value("queue_oldest_seconds", lane="interactive") == 61
        assert harness.value("queue_tokens", lane="interactive") == len("waiting")
        assert harness.engine.readiness().reason == "batch running for 61 s"
        harness.encoder.gate.set()
        await asyncio.gather(held, waiting)
        await harness.until(lambda: harness.value("engine_ready") == 1)


# --- starting ---


def artifact(folder: Path, canary: list[float]) -> Artifact:
    manifest = Manifest(
        name="tiny", dim=DIM, max_seq_length=32, pooling="mean", normalize=True, precision="fp32",
        inputs=(), selector={}, backbone={}, prompts={}, training={}, scores={}, parity={},
        fused={}, versions={}, files={}, depths=(2,),
    )  # fmt: skip
    (folder / "manifest.json").write_text(manifest.to_json())
    (folder / "canary.json").write_text(json.dumps({"text": "canary", "embedding": canary}))
    return Artifact(folder, manifest)


def right_canary() -> list[float]:
    embedding = np.array(vector("canary"))
    return list(embedding / np.linalg.norm(embedding))


async def test_start_checks_the_canary_and_describes_the_model(tmp_path: Path) -> None:
    harness = Harness(artifact=artifact(tmp_path, right_canary()))
    await harness.start()
    engine = harness.engine
    assert engine.readiness().ready
    assert (engine.artifact.manifest.dim, engine.model.provider) == (DIM, "FakeExecutionProvider")
    assert (engine.artifact.manifest.name, engine.threads >= 1) == ("tiny", True)
    assert harness.value("model_info", fingerprint=engine.artifact.fingerprint, dim="4") == 1
    for histogram in ("batch_texts", "batch_duration_seconds"):
        assert harness.value(f"{histogram}_count", depth="2") == 0
    assert harness.value("model_load_seconds") > 0
    assert await engine.drain(PATIENCE_SECONDS)


async def test_loading_counts_from_when_it_began_and_not_from_the_engine_s_start(
    tiny_artifact: Artifact,
) -> None:
    """A process opens its model while it imports the engine."""
    settings, metrics = Settings(artifact=tiny_artifact.path, threads=1), Metrics()
    model = LoadedModel.open_in_background(settings)
    await asyncio.to_thread(model.result)
    loaded = time.monotonic()
    await asyncio.sleep(0.2)
    engine = Engine(settings, metrics, model=model)
    await engine.start()
    seconds = metrics.registry.get_sample_value("s2sent_model_load_seconds")
    assert seconds is not None
    assert seconds > time.monotonic() - loaded >= 0.2
    assert await engine.drain(PATIENCE_SECONDS)


def test_the_number_of_threads_is_published() -> None:
    assert Harness(threads=3).value("engine_threads") == 3


@pytest.mark.parametrize(("threads", "tokenizer_threads"), [(1, 1), (3, 3), (16, 4)])
def test_the_tokenizer_pool_follows_threads_up_to_four(
    threads: int, tokenizer_threads: int
) -> None:
    engine = Harness(threads=threads).engine
    pool = engine._tokenization._token_ids
    assert engine.tokenizer_threads == pool._max_workers == tokenizer_threads


async def test_wrong_canary_is_a_sentence_and_no_start(tmp_path: Path) -> None:
    harness = Harness(artifact=artifact(tmp_path, [0.5] * DIM))
    with pytest.raises(EngineStartFailed, match="canary vector is wrong: it is off by"):
        await harness.engine.start()
    assert not harness.engine.readiness().ready


async def test_new_thread_proves_the_canary_right_before_it_serves(tmp_path: Path) -> None:
    harness = Harness(artifact=artifact(tmp_path, right_canary()))
    await harness.start()
    harness.encoder.gate.clear()
    dying = harness.send(LETHAL)
    await harness.encoder.until_entered()
    harness.tokenizer.gate.clear()  # holds the check of the canary
    harness.encoder.gate.set()
    await outcome(dying)
    assert harness.engine.readiness().reason == "engine thread died: restarting (SystemExit)"
    harness.tokenizer.gate.set()
    await harness.until(lambda: harness.engine.readiness().ready)
    assert harness.encoder.batches == [[LETHAL], ["canary"]]
    assert await harness.engine.drain(PATIENCE_SECONDS)


async def test_warm_up_that_fails_is_a_sentence_and_no_start() -> None:
    harness = Harness()
    harness.tokenizer.everything_becomes = MISSHAPEN
    with pytest.raises(EngineStartFailed, match="the first run of 1 x 1 tokens failed"):
        await harness.engine.start()
    assert harness.engine.readiness().reason == "engine could not start"


# The library panics on it instead of raising an error.
PANICKING_TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
}


async def test_a_tokenizer_file_that_makes_the_library_panic_fails_the_start(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_artifact.path, tmp_path / "artifact")
    content = json.dumps(PANICKING_TOKENIZER).encode()
    (folder / TOKENIZER).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"][TOKENIZER] = {"sha256": digest, "bytes": len(content)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    engine = Engine(Settings(artifact=folder, threads=1), Metrics())
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(EngineStartFailed, match="cannot be loaded: .*charsmap"):
            await engine.start()
    assert await engine.drain(PATIENCE_SECONDS)


async def test_a_panic_of_the_tokenizer_while_starting_fails_the_start() -> None:
    harness = Harness()
    harness.tokenizer.everything_becomes = PANIC
    with pytest.raises(EngineStartFailed, match="the tokenizer failed on 'warm up': index out of"):
        await harness.engine.start()
    assert harness.engine.readiness().reason == "engine could not start"


@pytest.mark.parametrize(("most", "tried"), [(1_024, []), (2_048, [(64, 32)])])
async def test_the_first_runs_are_short_and_the_largest_one_that_was_not_proved_to_fit(
    most: int, tried: list[tuple[int, int]]
) -> None:
    """Opening a model takes more memory than a batch of the size that is usual on a CPU."""
    harness = Harness(max_batch_tokens=most, max_queue_tokens=most)
    await harness.engine.start()
    shapes = [(len(batch), len(batch[0])) for batch in harness.encoder.batches]
    assert shapes == [(1, 7), (1, 7), *tried]  # the short one alone and not alone
    await harness.engine.drain(1)


async def test_a_model_that_was_proved_is_not_proved_again() -> None:
    """A process proves it while it imports what serves."""
    harness = Harness()
    settings = Settings()
    model = LoadedModel(harness.encoder, harness.tokenizer)
    model.warm_up(settings)
    assert len(harness.encoder.batches) == 2
    model.warm_up(settings)
    assert len(harness.encoder.batches) == 2


async def test_an_idle_thread_gives_memory_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "REST_SECONDS", 0.01)
    async with serving() as harness:
        await harness.until(lambda: len(harness.encoder.returns) == 1)  # what the warm-up took
        await harness.send("one")
        await harness.until(lambda: len(harness.encoder.returns) == 2)
        await asyncio.sleep(0.1)  # and then it waits without waking
        assert harness.encoder.returns == ["inference", "inference"]


# --- draining ---


async def test_drain_finishes_what_was_accepted_and_refuses_the_rest() -> None:
    async with serving() as harness:
        tasks = [await harness.hold(), harness.send("queued")]
        await harness.queued(1)
        draining = asyncio.create_task(harness.engine.drain(PATIENCE_SECONDS))
        await asyncio.sleep(0)
        assert harness.engine.readiness().reason == "draining"
        assert isinstance(await outcome(harness.send("late")), NotReady)
        harness.encoder.gate.set()
        assert await draining
        assert [type(await outcome(task)) for task in tasks] == [EmbedResult] * 2
        assert harness.value("requests_rejected_total", reason="draining") == 1


async def test_drain_finishes_the_texts_being_split_and_refuses_the_rest() -> None:
    """As for texts to embed: what was accepted is not cut off when the drain ends."""
    text = "x" * (INLINE_CHARACTERS + 1)
    async with serving() as harness:
        harness.tokenizer.gate.clear()
        accepted = asyncio.create_task(harness.tokenize([text]))
        await harness.until(lambda: harness.tokenizer.calls == 1)
        draining = asyncio.create_task(harness.engine.drain(PATIENCE_SECONDS))
        await asyncio.sleep(0)
        for late in (harness.tokenize(["a"]), harness.embed(["a"])):
            assert isinstance(await outcome(asyncio.create_task(late)), NotReady)
        assert not draining.done()
        harness.tokenizer.gate.set()
        assert await draining
        assert await accepted == [len(text) + 1]
        assert harness.value("requests_rejected_total", reason="draining") == 2


async def test_drain_that_takes_too_long_answers_those_who_wait_for_tokens_too() -> None:
    async with serving() as harness:
        harness.tokenizer.gate.clear()
        texts = ["x" * (INLINE_CHARACTERS + 1)]
        held = asyncio.create_task(harness.tokenize(texts))
        await harness.until(lambda: harness.tokenizer.calls == 1)
        behind = asyncio.create_task(harness.tokenize(texts))
        await asyncio.sleep(0)
        assert not await harness.engine.drain(0.01)
        assert [type(await outcome(task)) for task in (held, behind)] == [NotReady, NotReady]
        assert harness.value("requests_failed_total", reason="stopped") == 2


async def test_a_run_that_nobody_waits_for_does_not_spoil_a_drain() -> None:
    async with serving() as harness:
        (await harness.hold()).cancel()
        await asyncio.sleep(0)
        assert await harness.engine.drain(PATIENCE_SECONDS)
        harness.encoder.gate.set()


async def test_drain_that_takes_too_long_answers_everybody_all_the_same() -> None:
    async with serving() as harness:
        tasks = [await harness.hold(), harness.send("queued")]
        await harness.queued(1)
        assert not await harness.engine.drain(0.01)
        assert [type(await outcome(task)) for task in tasks] == [NotReady, NotReady]
        assert harness.value("requests_failed_total", reason="stopped") == 2


# --- all of it at once ---

inputs = st.lists(
    st.text("abc", min_size=1, max_size=30).flatmap(
        lambda text: st.sampled_from([text] * 12 + [text[:-1] + bad for bad in "!^?#"])
    ),
    min_size=1,
    max_size=20,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), inputs),
        st.tuples(st.just("send at depth 2"), inputs),
        st.tuples(st.just("send with no time"), inputs),
        st.tuples(st.just("cancel"), st.integers(0, 50)),
        st.tuples(st.just("hold"), st.none()),
        st.tuples(st.just("release"), st.none()),
        st.tuples(st.just("wait"), st.integers(1, 20)),
    ),
    max_size=40,
)


Kind = type[EmbedResult] | type[BaseException]

DEPTH_OF = {"send at depth 2": 2}


def allowed(plan: list[tuple[str, Any]]) -> list[tuple[list[str], int | None, set[Kind]]]:
    """The texts and the depth of each request of a plan, and the kinds of answer it may get."""
    everything = "".join(chain(*(texts for action, texts in plan if action.startswith("send"))))
    anybody: set[Kind] = {Overloaded, NotReady} if LETHAL in everything else {Overloaded}
    requests: list[tuple[list[str], int | None, set[Kind]]] = []
    for action, argument in plan:
        if action.startswith("send"):
            guilty = bool(set("".join(argument)) & {POISON, OUT_OF_MEMORY, NOT_A_NUMBER})
            kinds = anybody | {InferenceFailed if guilty else EmbedResult}
            if action == "send with no time":
                kinds.add(DeadlineExceeded)
            requests.append((argument, DEPTH_OF.get(action), kinds))
        elif action == "cancel" and argument < len(requests):
            requests[argument][2].add(asyncio.CancelledError)
    return requests


async def play(plan: list[tuple[str, Any]], **settings: Any) -> None:
    sent: list[asyncio.Task[EmbedResult]] = []
    async with serving(max_queue_tokens=512, **settings) as harness:
        for action, argument in plan:
            if action.startswith("send"):
                limit = 0.0 if action == "send with no time" else FOREVER_SECONDS
                depth = DEPTH_OF.get(action)
                sent.append(harness.send(*argument, timeout_seconds=limit, depth=depth))
            elif action == "cancel" and argument < len(sent):
                sent[argument].cancel()
            elif action == "hold":
                harness.encoder.gate.clear()
            elif action == "release":
                harness.encoder.gate.set()
            elif action == "wait":
                for _ in range(argument):
                    await asyncio.sleep(0)
        harness.encoder.gate.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            answers = await asyncio.gather(*sent, return_exceptions=True)
        for (texts, depth, kinds), answer in zip(allowed(plan), answers, strict=True):
            assert type(answer) in kinds, (texts, answer)
            if isinstance(answer, EmbedResult):
                assert answer.embeddings.tolist() == [vector(text, depth) for text in texts]
        await harness.until(lambda: harness.value("queue_tokens") == 0)
        assert harness.value("queue_texts") == 0
        assert len(harness.engine._in_flight) == 0


@hypothesis_settings(max_examples=100)
@given(steps, st.sampled_from([1, 3]), st.sampled_from([0, 1_000]))
def test_whatever_happens_every_request_gets_an_answer_of_its_own(
    plan: list[tuple[str, Any]], concurrent_runs: int, cache_bytes: int
) -> None:
    asyncio.run(play(plan, concurrent_runs=concurrent_runs, cache_bytes=cache_bytes))
