"""Statistics over seeds, against numbers computed by hand and from printed tables."""

from collections.abc import Mapping
from typing import Any

import pytest
from scipy.stats import ttest_rel

from s2sent.training.evaluation.results.statistics import (
    compare,
    equivalence,
    holm,
    kept_step,
    mean_and_spread,
    paired,
    verdict,
)


def test_a_mean_and_its_spread_as_tables_have_them() -> None:
    """The standard deviation has no sign, and one value has none."""
    assert mean_and_spread([1.0, 2.0, 3.0]) == "2.00 ± 1.00"
    assert mean_and_spread([0.1, 0.3], "+.3f") == "+0.200 ± 0.141"
    assert mean_and_spread([2e-6], ".1e") == "2.0e-06"
    assert mean_and_spread([]) == ""


def test_a_paired_test_by_hand() -> None:
    """Differences 1, 2, 3: mean 2, error 1 / sqrt 3, t = 3.464 with 2 degrees of freedom."""
    found = paired({1: 11, 2: 22, 3: 33}, {3: 30, 2: 20, 1: 10, 4: 0})
    assert found is not None
    assert found.differences == (1, 2, 3)
    assert found.mean == 2
    assert found.p == pytest.approx(0.0742, abs=1e-4)  # 1 - t / sqrt(t^2 + 2), for 2 degrees
    assert (found.low, found.high) == pytest.approx((-0.4841, 4.4841), abs=1e-4)


def test_pairs_find_what_the_spread_of_seeds_hides() -> None:
    """Seeds differ by tens, and one configuration is always about 1 ahead."""
    found = paired({1: 11.0, 2: 31.1, 3: 51.0, 4: 70.9}, {1: 10, 2: 30, 3: 50, 4: 70})
    assert found is not None
    assert found.p is not None
    assert found.p < 0.001


def test_what_cannot_be_tested_has_no_p() -> None:
    assert paired({1: 1.0}, {2: 1.0}) is None
    for first in ({1: 2.0}, {1: 2.0, 2: 2.0}):
        found = paired(first, {1: 1.0, 2: 1.0})
        assert found is not None
        assert (found.mean, found.p, found.low) == (1, None, None)
    assert equivalence([0.1], 1) is None


def test_differences_that_rounding_alone_sets_apart_have_no_p() -> None:
    """Of differences of 0.1 in three seeds the last bits would give p = 2e-27."""
    first = {1: 78.87 + 0.1, 2: 78.87 + 0.2, 3: 78.87 + 0.3}
    found = paired(first, {1: 78.87, 2: 78.87 + 0.1, 3: 78.87 + 0.2})
    assert found is not None
    assert len({*found.differences}) > 1
    assert (round(found.mean, 9), found.p, found.low, found.high) == (0.1, None, None, None)
    assert equivalence(found.differences, 1) is None


def test_holm_by_hand() -> None:
    """0.01 x 4, 0.02 x 3, then 0.03 x 2 (not below the one before), and 0.5 x 1."""
    assert holm([0.5, 0.01, None, 0.03, 0.02]) == [0.5, 0.04, None, 0.06, 0.06]
    assert holm([0.04, 0.03]) == pytest.approx([0.06, 0.06])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []


def test_equivalence_by_hand() -> None:
    """Differences -1, 0, 1: error 1 / sqrt 3; a margin of 2 is t = 3.464, one-sided p 0.0371."""
    assert equivalence([-1, 0, 1], 2) == pytest.approx(0.0371, abs=1e-4)
    assert equivalence([-1, 0, 1], 1) == pytest.approx(0.1127, abs=1e-4)


def test_equivalence_is_not_shown_by_a_mean_outside_the_margin() -> None:
    found = equivalence([1.0, 1.1, 0.9], 0.5)
    assert found is not None
    assert found > 0.95


def test_a_p_of_five_percent_or_more_shows_nothing() -> None:
    assert verdict(1, 0.05) == "not significant (p >= 0.05)"
    assert verdict(1, None) == "no test"
    assert verdict(1, 0.049) == "more"
    assert verdict(-1, 0.049) == "less"


def runs(scores: list[float], *steps: int) -> list[dict[str, Any]]:
    """Runs of seeds from 1, which kept these steps."""
    kept = steps or [10] * len(scores)
    pairs = enumerate(zip(scores, kept, strict=True), start=1)
    return [{"seed": seed, "step": step, "score": score} for seed, (score, step) in pairs]


def score(run: Mapping[str, Any]) -> float:
    return float(run["score"])


ABOVE, BELOW = [3.0, 4.1, 5.2], [1.0, 2.0, 3.3]


def test_the_weights_that_are_scored_are_those_of_the_kept_step() -> None:
    """Wherever an experiment writes it."""
    assert kept_step({"step": 5}) == kept_step({"dev": {"step": 5}}) == 5
    assert kept_step({"dev": 80.0}) is None


def test_every_run_counts_whatever_step_it_kept() -> None:
    """Of three runs one or all may have kept step 0: the test is the same."""
    expected = compare([("", runs(ABOVE), runs(BELOW))], score)
    for steps in ((10, 0, 10), (0, 0, 0)):
        assert compare([("", runs(ABOVE, *steps), runs(BELOW))], score) == expected
        assert compare([("", runs(ABOVE), runs(BELOW, *steps))], score) == expected


def test_initial_weights_alone_are_not_tested_and_correct_nothing() -> None:
    trained = ("trained", runs(ABOVE), runs(BELOW))
    initial = ("initial", runs(ABOVE, 0, 0, 0), runs(BELOW, 0, 0, 0))
    (alone,) = compare([trained], score)
    beside, untested = compare([trained, initial], score)
    assert beside == alone
    assert (untested.p, untested.verdict) == (None, "initial weights, not tested")
    assert untested.found == alone.found


def test_comparisons_are_paired_by_seed_and_corrected_over_the_table() -> None:
    """Seeds in any order; two comparisons of equal p count twice."""
    first, second = compare([(name, runs(ABOVE)[::-1], runs(BELOW)) for name in "ab"], score)
    assert first.p == second.p == 2 * float(ttest_rel(ABOVE, BELOW).pvalue)
