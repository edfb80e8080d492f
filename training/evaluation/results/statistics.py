"""Statistics over seeds: paired tests, Holm's correction over a table, tests of equivalence.

Runs are compared by seed: both runs of a pair share the order of their data and every other random
choice that they have in common, so what differs is what is compared. Runs of several tasks or
settings that share a seed are not independent and are never pooled into one sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from scipy.stats import t as student

LEVEL = 0.05
LEAST_MOVEMENT = 0.05  # of a fusion weight; a run below it says nothing about the weights
CONFIDENCE = 0.95
LEAST_SPREAD = 1e-6  # of scores x 100; runs that spread less differ by rounding alone

Verdict = Literal["more", "less", "not shown"]
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
    p: float | None
    low: float | None
    high: float | None


def paired(first: BySeed, second: BySeed) -> PairedDifference | None:
    """The t-test of ``first`` minus ``second`` by seeds; None where they share no seed."""
    differences = tuple(first[seed] - second[seed] for seed in sorted(first.keys() & second.keys()))
    if not differences:
        return None
    mean, error = fmean(differences), _standard_error(differences)
    if not error:
        return PairedDifference(differences, mean, None, None, None)
    freedom = len(differences) - 1
    p = 2 * float(student.sf(abs(mean) / error, freedom))
    reach = error * float(student.ppf((1 + CONFIDENCE) / 2, freedom))
    return PairedDifference(differences, mean, p, mean - reach, mean + reach)


def mean_and_spread(values: Sequence[float], form: str = ".2f") -> str:
    """The mean ± the standard deviation in a format; one value has none, no value an empty text."""
    if not values:
        return ""
    spread = f" ± {stdev(values):{form.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{fmean(values):{form}}{spread}"


def p_value(p: float | None) -> str:
    """A p value as tables have it: three decimals, ``< 0.001``, or ``no test``."""
    return "no test" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def p_equation(p: float | None) -> str:
    """A p value as sentences have it: ``p = 0.012``, ``p < 0.001``, or ``no test``."""
    return p_value(p) if p is None else f"p {p_value(p)}" if p < 0.001 else f"p = {p_value(p)}"


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

    Below `LEVEL` the claim "no difference of ``margin`` or more" is shown (Schuirmann 1987). None
    where the variance cannot be estimated.
    """
    error = _standard_error(differences)
    if not error:
        return None
    mean, freedom = fmean(differences), len(differences) - 1
    above = float(student.sf((mean + margin) / error, freedom))  # against mean <= -margin
    below = float(student.cdf((mean - margin) / error, freedom))  # against mean >= +margin
    return max(above, below)


def verdict(mean: float, adjusted_p: float | None) -> Verdict:
    """What a difference and its adjusted p show; at or above `LEVEL` nothing is shown."""
    if adjusted_p is None or adjusted_p >= LEVEL:
        return "not shown"
    return "more" if mean > 0 else "less"


def _standard_error(differences: Sequence[float]) -> float:
    """Of the mean; 0 where it cannot be estimated."""
    if len(differences) < 2 or (spread := stdev(differences)) < LEAST_SPREAD:
        return 0.0
    return float(spread / len(differences) ** 0.5)
