"""Ratios within a round, what was not measured, and the targets that follow."""

from typing import Any

import pytest

from benchmarks.report.results import (
    BEST_INFINITY,
    Spread,
    fastest_infinity,
    look_up,
    over,
    over_leanest_infinity,
    over_rounds,
    ratio,
    spread_at,
    words_at,
)
from benchmarks.report.targets import Finding, Target, find


def a_round(ours: float, torch: float, optimum: float) -> dict[str, Any]:
    def figures(value: float) -> dict[str, Any]:
        return {"loads": {"c64": {"texts_per_second": value}}}

    return {
        "s2sent": figures(ours),
        "infinity-torch": figures(torch),
        "infinity-optimum": figures(optimum),
    }


def test_ratios_are_taken_within_a_round_and_then_their_median() -> None:
    """The ratio of the medians would be 2; a slow spell of the machine hits both."""
    rounds = [a_round(300, 100, 50), a_round(90, 20, 30), a_round(200, 100, 150)]
    seen = over_rounds(
        {"rounds": rounds}, over("s2sent", BEST_INFINITY, "loads", "c64", "texts_per_second")
    )
    assert seen == 3


def test_the_leaner_engine_is_known_where_both_were_measured() -> None:
    path = ("loads", "c64", "texts_per_second")
    assert fastest_infinity(a_round(1, 2, 3), *path) == 3
    assert over_leanest_infinity(a_round(1, 2, 3), *path) == 0.5
    alone = a_round(1, 2, 3)
    del alone["infinity-torch"]
    assert fastest_infinity(alone, *path) == 3
    assert over_leanest_infinity(alone, *path) is None


def test_what_was_not_measured_is_none_all_the_way() -> None:
    assert look_up({"a": {"b": 1}}, "a", "c") is None
    assert look_up({"a": None}, "a", "b") is None
    assert ratio(None, 1) is None
    assert over_rounds({"rounds": [{}]}, lambda each: look_up(each, "s2sent", "cosine")) is None
    assert fastest_infinity({}, "cosine") is None


@pytest.mark.parametrize(
    ("sense", "seen", "is_met"),
    [
        (">=", 3.0, True),
        (">=", 2.99, False),
        ("<=", 3.0, True),
        ("<=", 3.01, False),
        ("<=", None, None),
    ],
)
def test_a_target_is_met_at_its_bound(sense: Any, seen: float | None, is_met: bool | None) -> None:
    target = Target("speed", sense, 3.0, "x", lambda _results: seen)
    assert Finding(target, seen).is_met is is_met


def with_figures(speeds: dict[str, float], p50: float, p99: float, **others: Any) -> dict[str, Any]:
    loads: dict[str, dict[str, float]] = {
        load: {"texts_per_second": value} for load, value in speeds.items()
    }
    loads["c1"] |= {"p50_ms": p50, "p99_ms": p99}
    return {"loads": loads, **others}


def test_every_target_follows_from_the_numbers() -> None:
    """With numbers that just meet each one, all are met; with none, none is judged."""
    open_loop = {
        "80": {"p99_ms": 15.0},
        "120": {
            "capacity": 1000.0,
            "goodput_per_second": 950.0,
            "refusal_p99_ms": 10.0,
            "lost": 0,
        },
    }
    memory = {"memory_mb": {"rss": 40.0}, "memory_at_rest_mb": {"rss": 40.0}}
    more = {"memory_mb": {"rss": 100.0}, "memory_at_rest_mb": {"rss": 100.0}}
    ours = {"c1": 200.0, "c16": 600.0, "c64": 900.0, "batch": 1200.0}
    int8 = {"c1": 300.0, "c16": 1020.0, "c64": 1500.0, "batch": 2160.0}
    start = {"seconds_to_ready": 1.0, "open_loop": open_loop}
    this_round = {
        "s2sent": with_figures(ours, 3.0, 9.0, **memory, **start),
        "s2sent-int8": with_figures(int8, 2.3, 7.0),
        "infinity-torch": with_figures({"c1": 100, "c64": 300, "batch": 480}, 9.0, 9.0, **more),
        "infinity-optimum": with_figures({"c1": 90, "c64": 290, "batch": 470}, 9.0, 9.0, **more),
        "tei": with_figures({"c1": 1, "c16": 300, "c64": 409, "batch": 500}, 3.0, 9.0),
        "tei-int8": with_figures({"c1": 1, "c16": 600, "c64": 750, "batch": 981}, 2.0, 7.0),
        "plain-fastapi": with_figures({"c1": 1}, 3.0 / 1.05, 9.0),
        "plain-fastapi-int8": with_figures({"c1": 1}, 2.3 / 1.05, 9.0),
        "raw": with_figures({"c1": 1, "c64": 1000, "batch": 1260}, 2.0, 2.0),
        "raw-int8": with_figures({"c1": 1, "c64": 1660, "batch": 2270}, 1.3, 2.0),
    }
    results = {
        "rounds": [this_round],
        "soak_memory": {"growth_percent": 2.0},
    }
    assert [finding.target.what for finding in find(results) if not finding.is_met] == []
    assert {finding.is_met for finding in find({"rounds": []})} == {None}


def test_a_spread_is_the_median_with_the_least_and_the_most() -> None:
    rounds = [a_round(value, 1, 1) for value in (5, 1, 3)]
    path = ("loads", "c64", "texts_per_second")
    assert spread_at({"rounds": rounds}, "s2sent", *path) == Spread(3, 1, 5)
    assert spread_at({"rounds": rounds}, "tei", *path) is None


def test_a_system_may_be_compared_with_any_other_or_infinity_s_better_engine() -> None:
    path = ("loads", "c64", "texts_per_second")
    assert over("s2sent", "infinity-torch", *path)(a_round(6, 2, 3)) == 3
    assert over("s2sent", BEST_INFINITY, *path)(a_round(6, 2, 3)) == 2
    assert over("s2sent", "tei", *path)(a_round(6, 2, 3)) is None


def test_words_are_told_once_in_their_order() -> None:
    rounds = [{"raw": {"way": way}} for way in ("b", "a", "b")]
    assert words_at({"rounds": [*rounds, {}]}, "raw", "way") == ["b", "a"]
