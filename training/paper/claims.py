"""Tests the paper's claims against the scores of our runs.

A claim of "more" holds where the means have that order and Welch's t-test is significant at
`LEVEL`; without the latter it is not significant. A claim of "the same" or "flat" holds where the
means are within `FLAT` of each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from scipy.stats import ttest_ind

from training.paper.configurations import (
    BY_REDUCTION,
    CLS,
    CLS_S2SENT,
    GRID,
    LAST1,
    LAST1_GATE,
    S2SENT,
    SQUEEZES,
    STATIC_FEATURES,
    Configuration,
)

LEVEL = 0.05
FLAT = 0.5  # points of Spearman x 100
COLLAPSE = 3.0  # least loss of CLS in points; the paper prints 9.3 and 15.5
SMALL = 0.5  # percent of parameters and of time
FLAT_REDUCTIONS = (4, 8, 12, 16, 24)

Verdict = Literal["holds", "not significant", "does not hold", "not run"]
Scores = Mapping[str, Sequence[float]]  # configuration's name to its averages, one per seed
WORST_FIRST: tuple[Verdict, ...] = ("does not hold", "not run", "not significant", "holds")


@dataclass(frozen=True)
class Finding:
    """The verdict on a claim or a part of one, with its numbers."""

    claim: str
    verdict: Verdict
    numbers: str


def welch(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The two-sided p of Welch's t-test; None where the variance cannot be estimated."""
    if min(len(first), len(second)) < 2 or stdev(first) == stdev(second) == 0:
        return None
    return float(ttest_ind(first, second, equal_var=False).pvalue)


def describe(values: Sequence[float]) -> str:
    """Mean, standard deviation and number of values as text."""
    if not values:
        return "not run"
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread} (n = {len(values)})"


def findings(scores: Scores, overhead: Mapping[str, float | None]) -> list[Finding]:
    """The verdicts on all claims.

    ``overhead`` is in percent: ``parameters`` and ``latency``, None for what was not measured;
    ``latency_lower`` and ``latency_upper`` are the quartiles of the latter, if known.
    """
    last = {n: [f"last{n}-{kind}" for kind in ("2d", "1d", "avg")] for n in (3, 6)}
    none, gap, low4, low8 = (cell.name for cell in SQUEEZES.values())
    return [
        *(
            _all(
                f"(a) Last{n}: 2D > 1D > avg, and avg is as the base",
                _more(scores, two_d, one_d),
                _more(scores, one_d, average),
                _same(scores, average, LAST1.name),
            )
            for n, (two_d, one_d, average) in last.items()
        ),
        _all("(a) Last1: 1D > base", _more(scores, LAST1_GATE.name, LAST1.name)),
        _all(
            "(b) low4 and low8 > GAP > no squeeze",
            _more(scores, low4, gap),
            _more(scores, low8, gap),
            _more(scores, gap, none),
        ),
        _blocks_and_frequencies(scores),
        _reductions(scores),
        _all(
            f"(e) CLS pooling collapses with the selector (by {COLLAPSE:g} points or more)",
            _more(scores, CLS.name, CLS_S2SENT.name, by=COLLAPSE),
        ),
        _all(
            f"(f) The selector adds less than {SMALL:g} %",
            *(_small(name, overhead) for name in ("parameters", "latency")),
        ),
        _all(
            "X1 (ours): weights from the input do more than weights that are learned and fixed",
            _more(scores, S2SENT.name, STATIC_FEATURES.name),
        ),
    ]


def _all(claim: str, *parts: Finding) -> Finding:
    """A claim with several parts; its verdict is the worst of theirs."""
    verdict = min((part.verdict for part in parts), key=WORST_FIRST.index)
    return Finding(claim, verdict, "; ".join(part.numbers for part in parts))


def _more(scores: Scores, first: str, second: str, *, by: float = 0.0) -> Finding:
    a, b = scores.get(first, ()), scores.get(second, ())
    return _more_values((first, a), (second, b), by=by)


def _more_values(
    first: tuple[str, Sequence[float]], second: tuple[str, Sequence[float]], *, by: float = 0.0
) -> Finding:
    (name_a, a), (name_b, b) = first, second
    numbers = f"{name_a} {describe(a)}, {name_b} {describe(b)}"
    if not (a and b):
        return Finding("", "not run", numbers)
    p = welch(a, b)
    numbers += f", p = {p:.3f}" if p is not None else ", no test"
    difference = fmean(a) - fmean(b)
    if difference <= 0 or difference < by:
        return Finding("", "does not hold", numbers)
    return Finding("", "holds" if p is not None and p < LEVEL else "not significant", numbers)


def _same(scores: Scores, first: str, second: str) -> Finding:
    a, b = scores.get(first, ()), scores.get(second, ())
    numbers = f"{first} {describe(a)}, {second} {describe(b)}"
    if not (a and b):
        return Finding("", "not run", numbers)
    difference = fmean(a) - fmean(b)
    verdict: Verdict = "holds" if abs(difference) <= FLAT else "does not hold"
    return Finding("", verdict, f"{numbers}, difference {difference:+.2f} (at most {FLAT:g})")


def _flat(scores: Scores, cells: Sequence[Configuration], what: str) -> Finding:
    means = {cell.name: fmean(scores[cell.name]) for cell in cells if scores.get(cell.name)}
    counted = f"{what}: {len(means)} of {len(cells)} cells run"
    if len(means) < 2:
        return Finding("", "not run", counted)
    low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    reach = means[high] - means[low]
    numbers = f"{counted}, from {low} {means[low]:.2f} to {high} {means[high]:.2f}"
    verdict: Verdict = "holds" if reach <= FLAT else "does not hold"
    return Finding("", verdict, f"{numbers}, a reach of {reach:.2f} (at most {FLAT:g})")


def _blocks_and_frequencies(scores: Scores) -> Finding:
    several = [cell for (n, m), cell in GRID.items() if n > 1 and m > 1]
    others = [cell for key, cell in GRID.items() if key != (1, 1)]
    means = {cell.name: fmean(scores[cell.name]) for cell in others if scores.get(cell.name)}
    one = GRID[1, 1].name
    lowest = min(means, key=means.__getitem__, default=others[0].name)
    return _all(
        "(c) n > 1 and m > 1 are all alike; n = 1, m = 1 is worst",
        _flat(scores, several, "n > 1 and m > 1"),
        _more(scores, lowest, one),
    )


def _reductions(scores: Scores) -> Finding:
    middle = [BY_REDUCTION[r] for r in FLAT_REDUCTIONS]
    values = [score for cell in middle for score in scores.get(cell.name, ())]
    ends = (BY_REDUCTION[min(BY_REDUCTION)], BY_REDUCTION[max(BY_REDUCTION)])
    return _all(
        "(d) r from 4 to 24 are alike, and the smallest and the largest r are worse",
        _flat(scores, middle, "r from 4 to 24"),
        *(
            _more_values(("r from 4 to 24", values), (end.name, scores.get(end.name, ())))
            for end in ends
        ),
    )


def _small(name: str, overhead: Mapping[str, float | None]) -> Finding:
    """Whether it is below `SMALL`; not significant where `SMALL` is between its quartiles."""
    percent = overhead.get(name)
    if percent is None:
        return Finding("", "not run", f"{name}: not run")
    lower, upper = (overhead.get(f"{name}_{side}") for side in ("lower", "upper"))
    numbers = f"{name} {percent:+.2f} %"
    if lower is None or upper is None:
        return Finding("", "holds" if percent < SMALL else "does not hold", numbers)
    verdict: Verdict = "not significant"
    if not lower < SMALL <= upper:
        verdict = "holds" if upper < SMALL else "does not hold"
    return Finding("", verdict, f"{numbers} (quartiles {lower:+.2f} to {upper:+.2f})")
