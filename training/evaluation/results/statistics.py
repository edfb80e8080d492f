"""Statistics over seeds: paired tests, Holm's correction over a table, tests of equivalence.

Runs are compared by seed: both runs of a pair share the order of their data and every other random
choice that they have in common, so what differs is what is compared. Runs of several tasks or
settings that share a seed are not independent and are never pooled into one sample.

One rule says which runs count. A run is scored at the step that it kept, the best on development
data, step 0 included, and counts whatever step that is: none is left out for its outcome. Only
where every run on both sides kept step 0 are initial weights compared. Nothing was trained there,
so such a comparison has a difference and no test.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from scipy.stats import ttest_1samp

LEVEL = 0.05
CONFIDENCE = 0.95
LEAST_SPREAD = 1e-6  # of scores x 100; runs that spread less differ by rounding alone
NOT_SIGNIFICANT = f"not significant (p >= {LEVEL:g})"
INITIAL_WEIGHTS = "initial weights, not tested"

Line = Mapping[str, Any]  # of a file of results: one run
Value = Callable[[Line], float | None]  # a number of a run; None where it has none
BySeed = Mapping[int, float]  # seed to score


@dataclass(frozen=True)
class PairedDifference:
    """The differences of two configurations over the seeds that both have.

    ``p`` is two-sided; ``low`` and ``high`` bound the 95 % confidence interval of the mean. All
    three are None with fewer than two seeds, and with two or more differences that are equal but
    for rounding (`LEAST_SPREAD`), whose variance cannot be estimated.
    """

    differences: tuple[float, ...]
    mean: float
    p: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Comparison:
    """What two arms differ in, tested among the comparisons of a table.

    ``p`` is adjusted by `holm`; None where there is no test. ``initial`` says that all runs of both
    arms kept their initial weights.
    """

    label: str
    found: PairedDifference
    p: float | None
    initial: bool

    @property
    def verdict(self) -> str:
        """What the difference shows, in the words of a table."""
        return INITIAL_WEIGHTS if self.initial else verdict(self.found.mean, self.p)


def kept_step(run: Line) -> int | None:
    """The step whose weights a run is scored with; None where its line does not say."""
    dev = run.get("dev")
    step = dev.get("step") if isinstance(dev, Mapping) else run.get("step")
    return None if step is None else int(step)


def by_seed(runs: Sequence[Line], value: Value) -> dict[int, float]:
    """The values of runs that have one, by their seeds, ascending."""
    found = {int(run["seed"]): value(run) for run in runs}
    return {seed: number for seed, number in sorted(found.items()) if number is not None}


def compare(
    sides: Sequence[tuple[str, Sequence[Line], Sequence[Line]]], value: Value
) -> list[Comparison]:
    """Test the first runs of each label minus the second, paired by seed.

    Holm's correction is over the comparisons that are tested. A label whose two sides share no seed
    is left out.
    """
    made = []
    for label, first, second in sides:
        found = paired(by_seed(first, value), by_seed(second, value))
        if found is not None:
            initial = all(kept_step(run) == 0 for run in (*first, *second))
            made.append((label, found, initial))
    adjusted = holm([None if initial else found.p for _, found, initial in made])
    return [
        Comparison(label, found, p, initial)
        for (label, found, initial), p in zip(made, adjusted, strict=True)
    ]


def paired(first: BySeed, second: BySeed) -> PairedDifference | None:
    """The t-test of ``first`` minus ``second`` by seeds; None where they share no seed."""
    differences = tuple(first[seed] - second[seed] for seed in sorted(first.keys() & second.keys()))
    if not differences:
        return None
    mean = fmean(differences)
    if not _varies(differences):
        return PairedDifference(differences, mean)
    test = ttest_1samp(differences, 0)
    low, high = test.confidence_interval(CONFIDENCE)
    return PairedDifference(differences, mean, float(test.pvalue), float(low), float(high))


def mean_and_spread(values: Sequence[float], form: str = ".2f") -> str:
    """The mean ± the standard deviation in a format; one value has none, no value an empty text."""
    if not values:
        return ""
    spread = f" ± {stdev(values):{form.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{fmean(values):{form}}{spread}"


def p_value(p: float | None) -> str:
    """A p value as tables have it: three decimals, ``< 0.001``, or ``no test``."""
    return "no test" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p values adjusted by Holm's step-down method; None stays None and is not counted.

    The smallest of m is multiplied by m, the next by m - 1 and so on; none is smaller than the one
    before it or above 1 (Holm 1979, Scandinavian Journal of Statistics 6).
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    floor = 0.0
    for rank, (p, place) in enumerate(known):
        floor = max(floor, min(1.0, p * (len(known) - rank)))
        adjusted[place] = floor
    return adjusted


def equivalence(differences: Sequence[float], margin: float) -> float | None:
    """The p of two one-sided t-tests that the mean difference is within ± ``margin``.

    Below `LEVEL` a difference of ``margin`` or more is ruled out (Schuirmann 1987). None where the
    variance cannot be estimated.
    """
    if not _varies(differences):
        return None
    above = ttest_1samp(differences, -margin, alternative="greater").pvalue
    below = ttest_1samp(differences, margin, alternative="less").pvalue
    return float(max(above, below))


def verdict(mean: float, adjusted_p: float | None) -> str:
    """What a difference and its adjusted p show, in the words of a table."""
    if adjusted_p is None:
        return "no test"
    if adjusted_p >= LEVEL:
        return NOT_SIGNIFICANT
    return "more" if mean > 0 else "less"


def _varies(differences: Sequence[float]) -> bool:
    return len(differences) > 1 and stdev(differences) >= LEAST_SPREAD
