"""Tests the paper's statements against the scores of our runs.

Configurations are compared by seeds, and Holm's correction is over all comparisons of the table. A
statement of "more" holds, or does not hold, where its t-test is significant; one of "the same"
holds where two one-sided tests rule out a difference above `FLAT`, and does not hold where the
95 % interval lies outside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from s2sent.training.evaluation.results.statistics import (
    LEVEL,
    NOT_SIGNIFICANT,
    BySeed,
    by_seed,
    equivalence,
    holm,
    kept_step,
    mean_and_spread,
    p_equation,
    paired,
)
from s2sent.training.experiments.arms.configurations import (
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
from s2sent.training.experiments.tables import NOT_RUN, ByArm, get

FLAT = 0.5  # points of Spearman x 100
COLLAPSE = 3.0  # least loss of CLS in points; the paper prints 9.3 and 15.5
SMALL = 0.5  # percent of parameters and of time
FLAT_REDUCTIONS = (4, 8, 12, 16, 24)

HOLDS, FAILS, NOT_TESTED = "holds", "does not hold", "not tested"
UNDECIDED = f"{SMALL:g} % is between the quartiles"
WORST_FIRST = (FAILS, NOT_RUN, NOT_TESTED, UNDECIDED, NOT_SIGNIFICANT, HOLDS)


@dataclass(frozen=True)
class Finding:
    """The verdict on a statement, with its numbers."""

    statement: str
    verdict: str
    numbers: str


@dataclass(frozen=True)
class Part:
    """One comparison of a statement: its numbers, and its verdict if its p is significant."""

    numbers: str
    verdict: str
    p: float | None = None  # None: the verdict depends on no p

    def judged(self, adjusted: float | None) -> str:
        """The verdict after correction of p."""
        return NOT_SIGNIFICANT if adjusted is not None and adjusted >= LEVEL else self.verdict


def describe(values: Sequence[float]) -> str:
    """Mean, standard deviation and number of values as text."""
    return f"{mean_and_spread(values)} (n = {len(values)})" if values else NOT_RUN


def findings(runs: ByArm, overhead: Mapping[str, float | None]) -> list[Finding]:
    """The verdicts on all statements, from the runs of each configuration.

    ``overhead`` is in percent: ``parameters`` and ``latency``, None for what was not measured;
    ``latency_lower`` and ``latency_upper`` are the quartiles of the latter, if known.
    """
    statements = _statements(_Compare(runs), overhead)
    parts = [part for of_one in statements.values() for part in of_one]
    verdicts = iter(
        part.judged(p) for part, p in zip(parts, holm([part.p for part in parts]), strict=True)
    )
    found = []
    for statement, of_one in statements.items():
        worst = min((next(verdicts) for _ in of_one), key=WORST_FIRST.index)
        found.append(Finding(statement, worst, "; ".join(part.numbers for part in of_one)))
    return found


def _statements(
    compare: "_Compare", overhead: Mapping[str, float | None]
) -> dict[str, Sequence[Part]]:
    none, gap, low4, low8 = (cell.name for cell in SQUEEZES.values())
    orders = {
        f"(a) Last{n}: 2D > 1D > avg, and avg is as the base": (
            compare.more(f"last{n}-2d", f"last{n}-1d"),
            compare.more(f"last{n}-1d", f"last{n}-avg"),
            compare.same(f"last{n}-avg", LAST1.name),
        )
        for n in (3, 6)
    }
    return {
        **orders,
        "(a) Last1: 1D > base": (compare.more(LAST1_GATE.name, LAST1.name),),
        "(b) low4 and low8 > GAP > no squeeze": (
            compare.more(low4, gap),
            compare.more(low8, gap),
            compare.more(gap, none),
        ),
        "(c) n > 1 and m > 1 are all alike; n = 1, m = 1 is worst": _grid(compare),
        "(d) r from 4 to 24 are alike, and the smallest and the largest r are worse": _reductions(
            compare
        ),
        f"(e) CLS pooling collapses with the selector (by {COLLAPSE:g} points or more)": (
            compare.more(CLS.name, CLS_S2SENT.name, by=COLLAPSE),
        ),
        f"(f) The selector adds less than {SMALL:g} %": tuple(
            _small(name, overhead) for name in ("parameters", "latency")
        ),
        "X1 (ours): weights from the input do more than weights that are learned and fixed": (
            compare.more(S2SENT.name, STATIC_FEATURES.name),
        ),
    }


@dataclass(frozen=True)
class _Compare:
    """Comparisons of configurations, by name, or of scores by seed under a name of their own."""

    runs: ByArm

    def of(self, name: str) -> BySeed:
        return by_seed(self.runs.get(name, ()), get("scores", "average"))

    def more(
        self, first: str, second: str, *, by: float = 0.0, values: BySeed | None = None
    ) -> Part:
        """Whether ``first``, or ``values`` for it, is more than ``second``, by over ``by``."""
        a, b = self.of(first) if values is None else values, self.of(second)
        numbers = _both((first, a), (second, b))
        if verdict := self._untested(first, second, a, b):
            return Part(numbers, verdict)
        found = paired(a, {seed: value + by for seed, value in b.items()})
        numbers += f", {p_equation(found.p if found else None)}"
        if found is None or found.p is None:
            return Part(numbers, NOT_TESTED)
        return Part(numbers, HOLDS if found.mean > 0 else FAILS, found.p)

    def same(self, first: str, second: str) -> Part:
        """Whether two differ by less than `FLAT`."""
        a, b = self.of(first), self.of(second)
        numbers = _both((first, a), (second, b))
        if verdict := self._untested(first, second, a, b):
            return Part(numbers, verdict)
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

    def flat(self, cells: Sequence[Configuration], what: str) -> Part:
        """Whether the highest and the lowest of configurations are the same."""
        means = self.means(cells)
        counted = f"{what}: {len(means)} of {len(cells)} cells run"
        if len(means) < 2:
            return Part(counted, NOT_RUN)
        part = self.same(max(means, key=means.__getitem__), min(means, key=means.__getitem__))
        return Part(f"{counted}, {part.numbers}", part.verdict, part.p)

    def means(self, cells: Sequence[Configuration]) -> dict[str, float]:
        """The mean over seeds of each configuration that was run."""
        return {cell.name: fmean(of.values()) for cell in cells if (of := self.of(cell.name))}

    def _untested(self, first: str, second: str, a: BySeed, b: BySeed) -> str | None:
        """Why two cannot be compared: one was not run, or both kept their initial weights."""
        if not (a and b):
            return NOT_RUN
        both = [*self.runs.get(first, ()), *self.runs.get(second, ())]
        return NOT_TESTED if all(kept_step(run) == 0 for run in both) else None


def _both(*both: tuple[str, BySeed]) -> str:
    return ", ".join(f"{name} {describe([*values.values()])}" for name, values in both)


def _grid(compare: _Compare) -> Sequence[Part]:
    several = [cell for (n, m), cell in GRID.items() if n > 1 and m > 1]
    others = [cell for key, cell in GRID.items() if key != (1, 1)]
    means = compare.means(others)
    lowest = min(means, key=means.__getitem__, default=others[0].name)
    return compare.flat(several, "n > 1 and m > 1"), compare.more(lowest, GRID[1, 1].name)


def _reductions(compare: _Compare) -> Sequence[Part]:
    """The ends are compared with the mean of the middle by seed, not with its cells as a sample."""
    middle = [BY_REDUCTION[r] for r in FLAT_REDUCTIONS]
    run = [scores for cell in middle if (scores := compare.of(cell.name))]
    seeds = set.intersection(*(set(scores) for scores in run)) if run else set()
    means = {seed: fmean(scores[seed] for scores in run) for seed in sorted(seeds)}
    ends = (BY_REDUCTION[min(BY_REDUCTION)], BY_REDUCTION[max(BY_REDUCTION)])
    return (
        compare.flat(middle, "r from 4 to 24"),
        *(compare.more("r from 4 to 24", end.name, values=means) for end in ends),
    )


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
