"""How long a backlog takes, told from batches of other sizes."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s2sent.service.engine.inference.fair_queue import BatchLimits
from s2sent.service.engine.inference.throughput import ThroughputEstimate

MAX_TOKENS, RUN_COST, SECONDS_PER_TOKEN = 1_024, 12, 0.0002
BACKLOG = 64 * MAX_TOKENS


def estimate_after(batches: Sequence[int], run_cost: float) -> float:
    """The estimate for the backlog after batches of so many tokens."""
    limits = BatchLimits(MAX_TOKENS, max_texts=128, run_cost_tokens=RUN_COST)
    throughput = ThroughputEstimate(limits)
    for tokens in batches:
        throughput.add(tokens, (tokens + run_cost) * SECONDS_PER_TOKEN)
    return throughput.seconds_for(BACKLOG)


def test_nothing_is_known_before_the_first_batch() -> None:
    assert estimate_after([], RUN_COST) == 0


@pytest.mark.parametrize("lone", [1, 3, 8, 20, MAX_TOKENS])
def test_single_short_texts_do_not_make_a_backlog_look_slow(lone: int) -> None:
    expected = (BACKLOG + 64 * RUN_COST) * SECONDS_PER_TOKEN
    assert estimate_after([lone] * 50, RUN_COST) == pytest.approx(expected)


@given(
    batches=st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=30),
    run_cost=st.floats(RUN_COST / 2, 2 * RUN_COST),
)
def test_the_estimate_is_as_near_as_the_assumed_cost_of_a_run(
    batches: list[int], run_cost: float
) -> None:
    took = (BACKLOG + 64 * run_cost) * SECONDS_PER_TOKEN
    assert took / 2.01 <= estimate_after(batches, run_cost) <= took * 2.01


def test_a_run_on_all_threads_has_the_fixed_cost_of_every_core() -> None:
    """One core works in its fixed part; beside others it would have cost that core alone."""
    limits = BatchLimits(MAX_TOKENS, max_texts=128, run_cost_tokens=RUN_COST)
    on_all, shared = ThroughputEstimate(limits), ThroughputEstimate(limits)
    on_all.add(8, (8 + 4 * RUN_COST) * SECONDS_PER_TOKEN, fixed_parts=4)
    shared.add(8, (8 + RUN_COST) * SECONDS_PER_TOKEN)
    assert on_all.seconds_for(BACKLOG) == pytest.approx(shared.seconds_for(BACKLOG))
