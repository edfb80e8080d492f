"""The simulated server takes what waits as soon as a core is free, and waits as theory says."""

from statistics import mean

import pytest

from benchmarks.load.open_loop import schedule
from benchmarks.studies.queueing import Runs, simulate


def test_a_free_core_takes_what_waits_up_to_the_cheapest_batch() -> None:
    """Three texts at once and one late: the runs end after 3, 5 and 7 seconds."""
    runs = Runs("one", 1, sizes=[1, 2], seconds=[2.0, 3.0])
    assert runs.capacity == 2 / 3
    assert simulate([0.0, 0.0, 0.0, 4.0], runs) == [3.0, 3.0, 5.0, 3.0]


def test_a_batch_is_never_larger_than_the_cheapest() -> None:
    runs = Runs("one", 1, sizes=[1, 2, 4], seconds=[2.0, 3.0, 9.0])
    assert simulate([0.0] * 4, runs) == [3.0, 3.0, 6.0, 6.0]


def test_two_cores_let_nobody_wait_before_both_are_busy() -> None:
    runs = Runs("two", 2, sizes=[1], seconds=[2.0])
    assert runs.capacity == 1.0
    assert simulate([0.0, 1.0, 1.5, 10.0], runs) == [2.0, 2.0, 2.5, 2.0]


def test_a_size_between_two_lies_on_the_line_between_their_times() -> None:
    assert Runs("one", 1, sizes=[1, 5], seconds=[1.0, 3.0]).seconds_of(2) == 1.5


def test_a_queue_with_constant_runs_waits_as_theory_says() -> None:
    """M/D/1 at half load: a mean wait of half a run (Pollaczek and Khinchine)."""
    runs = Runs("one", 1, sizes=[1], seconds=[1.0])
    latencies = simulate(schedule(0.5, 200_000, seed=1), runs)
    assert mean(latencies) == pytest.approx(1.5, rel=0.02)
