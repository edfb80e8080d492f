"""Tests the paper's statements against the scores of our runs.

Configurations are compared by seeds, and Holm's correction is over all comparisons of the table. A
statement of "more" holds, or does not hold, where its t-test is significant; one of "the same"
holds where two one-sided tests rule out a difference above `FLAT`, and does not hold where the
95 % interval lies outside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from s2sent.training.evaluation.results.statistics import (
    LEVEL,
    NOT_SIGNIFICANT,
    by_seed,
    equivalence,
    holm,
    kept_step,
    mean_and_spread,
    p_equation,
    paired,
)
from s2sent.training.experiments.tables import NOT_RUN, ByArm, get

FLAT = 0.5  # points of Spearman x 100
COLLAPSE = 3.0  # least loss of CLS in points; the paper prints 9.3 and 15.5
SMALL = 0.5  # percent of parameters and of time
# First, second, and by more than how many points the first is higher; None: the two are the same.
Statement = tuple[str, str, float | None]
PAPERS: dict[str, tuple[Statement, ...]] = {
    **{
        f"(a) Last{n}: 2D > 1D > avg, and avg is as the base": (
            (f"last{n}-2d", f"last{n}-1d", 0.0),
            (f"last{n}-1d", f"last{n}-avg", 0.0),
            (f"last{n}-avg", "last1", None),
        )
        for n in (3, 6)
    },
    "(a) Last1: 1D > base": (("last1-1d", "last1", 0.0),),
    f"(e) CLS pooling collapses with the selector (by {COLLAPSE:g} points or more)": (
        ("cls-last1-mlp", "cls-last3-2d-mlp", COLLAPSE),
    ),
}
COST = f"(f) The selector adds less than {SMALL:g} %"
OURS: dict[str, tuple[Statement, ...]] = {
    "X1 (ours): weights from the input do more than weights that are learned and fixed": (
        ("last3-2d", "last3-2d-static-features", 0.0),
    ),
}

HOLDS, FAILS, NOT_TESTED = "holds", "does not hold", "not tested"
UNDECIDED = f"{SMALL:g} % is between the quartiles"
WORST_FIRST = (FAILS, NOT_RUN, NOT_TESTED, UNDECIDED, NOT_SIGNIFICANT, HOLDS)


@dataclass(frozen=True)
class Part:
    """One comparison of a statement: its numbers, and its verdict if its p is significant."""

    numbers: str
    verdict: str
    p: float | None = None  # None: the verdict depends on no p

    def judged(self, adjusted: float | None) -> str:
        """The verdict after correction of p."""
        return NOT_SIGNIFICANT if adjusted is not None and adjusted >= LEVEL else self.verdict


def findings(runs: ByArm, overhead: Mapping[str, float | None]) -> list[tuple[str, str, str]]:
    """Each statement, the verdict on it and its numbers, from the runs of each configuration.

    ``overhead`` is in percent: ``parameters`` and ``latency``, None for what was not measured;
    ``latency_lower`` and ``latency_upper`` are the quartiles of the latter, if known.
    """
    statements = {name: [_compared(runs, *each) for each in of] for name, of in PAPERS.items()}
    statements[COST] = [_small(name, overhead) for name in ("parameters", "latency")]
    statements |= {name: [_compared(runs, *each) for each in of] for name, of in OURS.items()}
    parts = [part for of_one in statements.values() for part in of_one]
    adjusted = holm([part.p for part in parts])
    verdicts = iter([part.judged(p) for part, p in zip(parts, adjusted, strict=True)])
    found = []
    for statement, of_one in statements.items():
        worst = min((next(verdicts) for _ in of_one), key=WORST_FIRST.index)
        found.append((statement, worst, "; ".join(part.numbers for part in of_one)))
    return found


def _compared(runs: ByArm, first: str, second: str, more_by: float | None) -> Part:
    """Whether the first is higher than the second, or with None the same but for `FLAT`."""
    of_first, of_second = runs.get(first, ()), runs.get(second, ())
    average = get("scores", "average")
    a, b = by_seed(of_first, average), by_seed(of_second, average)
    numbers = f"{first} {_described([*a.values()])}, {second} {_described([*b.values()])}"
    if not (a and b):
        return Part(numbers, NOT_RUN)
    if all(kept_step(run) == 0 for run in (*of_first, *of_second)):
        return Part(numbers, NOT_TESTED)
    if more_by is None:
        return _same(numbers, a, b)
    found = paired(a, {seed: value + more_by for seed, value in b.items()})
    numbers += f", {p_equation(found.p if found else None)}"
    if found is None or found.p is None:
        return Part(numbers, NOT_TESTED)
    return Part(numbers, HOLDS if found.mean > 0 else FAILS, found.p)


def _same(numbers: str, a: Mapping[int, float], b: Mapping[int, float]) -> Part:
    found = paired(a, b)
    alike = equivalence(found.differences, FLAT) if found else None
    if found is None or alike is None or found.low is None or found.high is None:
        return Part(f"{numbers}, no test", NOT_TESTED)
    numbers += (
        f", difference {found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f}), "
        f"within {FLAT:g}: {p_equation(alike)}"
    )
    if found.low > FLAT or found.high < -FLAT:
        return Part(numbers, FAILS)
    return Part(numbers, HOLDS, alike)


def _described(values: Sequence[float]) -> str:
    """Mean, standard deviation and number of values as text."""
    return f"{mean_and_spread(values)} (n = {len(values)})" if values else NOT_RUN


def _small(name: str, overhead: Mapping[str, float | None]) -> Part:
    """Whether it is below `SMALL`; undecided where `SMALL` is between its quartiles."""
    percent = overhead.get(name)
    if percent is None:
        return Part(f"{name}: {NOT_RUN}", NOT_RUN)
    lower, upper = (overhead.get(f"{name}_{side}") for side in ("lower", "upper"))
    numbers = f"{name} {percent:+.2f} %"
    if lower is None or upper is None:
        return Part(numbers, HOLDS if percent < SMALL else FAILS)
    within = HOLDS if upper < SMALL else FAILS
    verdict = UNDECIDED if lower < SMALL <= upper else within
    return Part(f"{numbers} (quartiles {lower:+.2f} to {upper:+.2f})", verdict)
