"""Interactive texts go before bulk, and bulk has its share of what runs beside them."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2sent.service.engine.inference.batcher import Batcher
from s2sent.service.engine.inference.fair_queue import BatchLimits, PendingRequest
from s2sent.service.errors import Overloaded
from s2sent.service.lanes import LANES, Lane
from tests.support.fake_model import PATIENCE_SECONDS, Clock, outcome, serving

pytestmark = pytest.mark.usefixtures("form")

BATCH_TOKENS = 64
NO_FUTURE: Any = None  # the batcher never looks at it


def request(lane: Lane, *lengths: int) -> PendingRequest:
    return PendingRequest([[7] * n for n in lengths], dim=1, future=NO_FUTURE, lane=lane)


def batcher(
    bulk_share: float = 0.25, *, max_queue_tokens: int = 100_000, **options: Any
) -> Batcher:
    limits = BatchLimits(BATCH_TOKENS, max_texts=8, run_cost_tokens=8)
    return Batcher(limits, max_queue_tokens=max_queue_tokens, bulk_share=bulk_share, **options)


def take(rows: Batcher) -> tuple[Lane, int]:
    """The lane of the next batch, and its tokens."""
    batch = rows.next_batch()
    assert batch is not None
    (lane,) = {text.request.lane for text in batch.texts}
    return lane, sum(len(text.sequence) for text in batch.texts)


lengths_lists = st.lists(st.integers(1, 40), min_size=1, max_size=12)
arrivals = st.lists(
    st.tuples(lengths_lists, st.booleans(), st.integers(0, 3)), min_size=1, max_size=40
)


@given(arrivals, lengths_lists, st.sampled_from([0.05, 0.25, 0.5]))
def test_bulk_has_its_share_to_within_a_batch_while_both_wait(
    plan: list[tuple[list[int], bool, int]], bulk: list[int], share: float
) -> None:
    """Over every stretch of batches before which both lanes waited, however texts arrive."""
    rows = batcher(share)
    balance = 0.0  # what bulk has beyond its share of the tokens, since both began to wait
    highest = lowest = 0.0
    for lengths, more_bulk, batches in plan:
        rows.submit(request("interactive", *lengths))
        if more_bulk:
            rows.submit(request("bulk", *bulk))
        for _ in range(batches):
            if not rows.texts:
                break
            both_wait = all(rows.texts_in(lane) for lane in LANES)
            lane, tokens = take(rows)
            if not both_wait:
                balance = highest = lowest = 0.0
                continue
            balance += tokens * (1 - share) if lane == "bulk" else -tokens * share
            highest, lowest = max(highest, balance), min(lowest, balance)
            assert balance - lowest <= BATCH_TOKENS
            assert highest - balance <= BATCH_TOKENS


@given(lengths_lists, st.sampled_from([0.05, 0.25, 0.5]))
def test_a_bulk_request_ends_under_a_flood_of_interactive_ones(
    lengths: list[int], share: float
) -> None:
    rows = batcher(share)
    rows.submit(request("bulk", *lengths))
    interactive = 0
    while rows.texts_in("bulk"):
        rows.submit(request("interactive", *[8] * 16))
        lane, tokens = take(rows)
        interactive += tokens if lane == "interactive" else 0
        assert interactive <= (sum(lengths) + BATCH_TOKENS) * (1 - share) / share


def test_an_interactive_text_goes_before_all_bulk_that_waits() -> None:
    rows = batcher()
    rows.submit(request("bulk", *[8] * 500))
    for _ in range(5):
        assert take(rows)[0] == "bulk"
    rows.submit(request("interactive", 8))
    assert take(rows) == ("interactive", 8)
    assert take(rows)[0] == "bulk"


def test_what_bulk_was_owed_is_forgotten_when_none_waits() -> None:
    """Old debts would otherwise be paid in the middle of later interactive texts."""
    rows = batcher(0.5)
    rows.submit(bulk := request("bulk", 40))
    rows.submit(request("interactive", *[8] * 4))
    assert take(rows) == ("interactive", 32)
    rows.drop(bulk)
    rows.submit(request("interactive", 8))
    assert take(rows) == ("interactive", 8)
    rows.submit(request("bulk", 40))
    rows.submit(request("interactive", 8))
    assert take(rows) == ("interactive", 8)


def test_a_lane_that_is_full_leaves_the_other_its_room() -> None:
    rows = batcher(max_queue_tokens=100)
    assert rows.submit(request("bulk", *[10] * 10))
    assert not rows.submit(request("bulk", 1))
    assert (rows.is_full("bulk"), rows.is_full("interactive")) == (True, False)
    assert rows.submit(request("interactive", 10))
    assert (rows.tokens_in("bulk"), rows.tokens_in("interactive"), rows.tokens) == (100, 10, 110)


def test_few_texts_of_a_long_interactive_request_are_and_the_rest_waits_with_bulk() -> None:
    rows = batcher(max_queue_tokens=1_000, interactive_texts=16)
    long = [request("interactive", *[150] * 1_000), request("interactive", *[150] * 1_000)]
    assert rows.submit(*long)  # of two depths, say
    assert (rows.texts_in("interactive"), rows.texts_in("bulk")) == (16, 2_000 - 16)
    rows.drop(long[0])
    assert (rows.texts_in("interactive"), rows.texts_in("bulk")) == (0, 1_000)
    assert rows.submit(request("interactive", 8))
    assert not rows.submit(request("interactive", *[8] * 17))  # bulk has no room for its last
    assert rows.texts_in("interactive") == 1
    rows.drop(long[1])
    assert (rows.texts, rows.tokens) == (1, 8)


def test_a_request_that_asks_to_be_interactive_has_one_text_that_is() -> None:
    rows = batcher(interactive_texts=0)
    rows.submit(request("interactive", 8, 8))
    assert (rows.texts_in("interactive"), rows.texts_in("bulk")) == (1, 1)


def test_bulks_share_is_what_it_had_of_the_tokens_that_ran_lately() -> None:
    rows = batcher(0.25)
    rows.submit(request("bulk", *[8] * 10_000))
    assert (rows.share("bulk"), rows.share("interactive")) == (1, 0.75)
    for _ in range(20):
        take(rows)
    assert rows.share("bulk") == 1
    for _ in range(100):
        rows.submit(request("interactive", *[8] * 8))
        take(rows)
    assert 0.25 <= rows.share("bulk") < 0.5
    for _ in range(rows.texts_in("interactive") + 50):
        take(rows)
    assert rows.share("bulk") > 0.9


async def test_one_long_interactive_request_leaves_the_lane_to_others() -> None:
    async with serving(interactive_texts=4) as harness:
        held = await harness.hold()
        long = harness.send(*["x" * 30] * 100)
        await harness.queued(100)
        single = harness.send("small")
        await harness.queued(101)
        harness.encoder.gate.set()
        results = await asyncio.wait_for(asyncio.gather(held, long, single), PATIENCE_SECONDS)
        assert [len(result.embeddings) for result in results] == [1, 100, 1]
        assert any("small" in batch for batch in harness.encoder.batches[:4])


@pytest.mark.parametrize("interactive", [False, True])
async def test_bulk_that_cannot_be_embedded_in_time_is_refused_with_the_time_its_share_takes(
    interactive: bool,
) -> None:
    """One second for 20 tokens; a third of them are bulk's while interactive texts wait."""
    options = {"bulk_share": 1 / 3, "max_queue_tokens": 100_000, "request_timeout_seconds": 20}
    async with serving(Clock(), **options) as harness:
        await harness.send("measured")
        await harness.encoder.until_entered()
        held = await harness.hold()
        others = [harness.send(*["y" * 8] * 8)] if interactive else []
        bulk = harness.send(*["x" * 20] * 12, lane="bulk")  # 240 tokens and 4 runs: 14.4 s
        await harness.queued(12 + 8 * interactive)
        more = harness.send(*["z" * 20] * 2, lane="bulk")
        if interactive:
            refused = await outcome(more)
            assert isinstance(refused, Overloaded)
            assert refused.retry_after_seconds == 44  # 14.4 s at a third of the rate
            assert "a request may take 20 s" in str(refused)
        else:
            await harness.queued(14)
            others.append(more)
        harness.encoder.gate.set()
        await asyncio.wait_for(asyncio.gather(held, bulk, *others), PATIENCE_SECONDS)


async def test_an_interactive_request_overtakes_bulk_in_the_engine() -> None:
    async with serving(max_queue_tokens=4_000) as harness:
        held = await harness.hold()
        bulk = harness.send(*["bulky"] * 100, lane="bulk")
        await harness.queued(100)
        single = harness.send("small")
        await harness.queued(101)
        harness.encoder.gate.set()
        await asyncio.wait_for(asyncio.gather(held, bulk, single), PATIENCE_SECONDS)
        assert harness.encoder.batches[1] == ["small"]
        for lane, texts, requests in (("interactive", 2, 2), ("bulk", 100, 1)):
            assert harness.value("texts_total", lane=lane) == texts
            assert harness.value("queue_duration_seconds_count", lane=lane) == requests


async def test_only_the_full_lane_refuses_and_says_so() -> None:
    async with serving() as harness:
        held = await harness.hold()
        bulk = harness.send(*["bulky"] * 80, lane="bulk")
        await harness.queued(80)
        with pytest.raises(Overloaded, match="bulk tokens are waiting, of 256 that may"):
            await harness.embed(["more"], lane="bulk")
        single = harness.send("small")
        await harness.queued(81)
        harness.encoder.gate.set()
        await asyncio.wait_for(asyncio.gather(held, bulk, single), PATIENCE_SECONDS)
