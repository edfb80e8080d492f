"""Tests the paper's claims against the scores of our runs.

Configurations are compared by seeds, and Holm's correction is over all comparisons of the table. A
claim of "more" holds, or does not hold, where its t-test is significant at `LEVEL`; a claim of
"the same" or "flat" holds where two one-sided tests show a difference within `FLAT`, and does not
hold where the 95 % interval lies outside it. Everything else is not shown. Runs whose fusion
weights did not move compare starting points and are not tested.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from s2sent.training.evaluation.results.statistics import (
    LEVEL,
    PairedDifference,
    equivalence,
    holm,
    mean_and_spread,
    p_equation,
    paired,
)
from s2sent.training.experiments.paper.plan.configurations import (
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

FLAT = 0.5  # points of Spearman x 100
COLLAPSE = 3.0  # least loss of CLS in points; the paper prints 9.3 and 15.5
SMALL = 0.5  # percent of parameters and of time
FLAT_REDUCTIONS = (4, 8, 12, 16, 24)

Verdict = Literal["holds", "not shown", "does not hold", "not tested", "not run"]
BySeed = Mapping[int, float]
Scores = Mapping[str, BySeed]  # configuration's name to its averages by seed
WORST_FIRST: tuple[Verdict, ...] = (
    *("does not hold", "not run", "not tested", "not shown", "holds"),
)


@dataclass(frozen=True)
class Finding:
    """The verdict on a claim or a part of one, with its numbers."""

    claim: str
    verdict: Verdict
    numbers: str


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: its numbers, its p, and its verdict if that is significant."""

    numbers: str
    verdict: Verdict
    p: float | None = None  # None: the verdict depends on no p

    def judged(self, adjusted: float | None) -> Verdict:
        """The verdict after correction of p."""
        return "not shown" if adjusted is not None and adjusted >= LEVEL else self.verdict


def describe(values: Sequence[float]) -> str:
    """Mean, standard deviation and number of values as text."""
    return f"{mean_and_spread(values)} (n = {len(values)})" if values else "not run"


def findings(
    scores: Scores, overhead: Mapping[str, float | None], *, untested: Collection[str] = ()
) -> list[Finding]:
    """The verdicts on all claims.

    ``overhead`` is in percent: ``parameters`` and ``latency``, None for what was not measured;
    ``latency_lower`` and ``latency_upper`` are the quartiles of the latter, if known.
    ``untested`` names configurations whose fusion weights did not move.
    """
    claims = _claims(_Compare(scores, untested), overhead)
    parts = [part for of_claim in claims.values() for part in of_claim]
    verdicts = iter(
        part.judged(p) for part, p in zip(parts, holm([part.p for part in parts]), strict=True)
    )
    found = []
    for claim, of_claim in claims.items():
        worst = min((next(verdicts) for _ in of_claim), key=WORST_FIRST.index)
        found.append(Finding(claim, worst, "; ".join(part.numbers for part in of_claim)))
    return found


def _claims(compare: "_Compare", overhead: Mapping[str, float | None]) -> dict[str, Sequence[Part]]:
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
        "(c) n > 1 and m > 1 are all alike; n = 1, m = 1 is worst": _blocks_and_frequencies(
            compare
        ),
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

    scores: Scores
    untested: Collection[str]

    def of(self, name: str) -> BySeed:
        return self.scores.get(name, {})

    def more(
        self, first: str, second: str, *, by: float = 0.0, values: BySeed | None = None
    ) -> Part:
        """Whether ``first``, or ``values`` for it, is more than ``second``, by over ``by``."""
        a, b = self.of(first) if values is None else values, self.of(second)
        part = self._unusable((first, a), (second, b))
        if part is not None:
            return part
        found = paired(a, {seed: value + by for seed, value in b.items()})
        numbers = f"{_both((first, a), (second, b))}, {_p(found)}"
        if found is None or found.p is None:
            return Part(numbers, "not shown")
        return Part(numbers, "holds" if found.mean > 0 else "does not hold", found.p)

    def same(self, first: str, second: str) -> Part:
        """Whether two differ by less than `FLAT`."""
        a, b = self.of(first), self.of(second)
        part = self._unusable((first, a), (second, b))
        if part is not None:
            return part
        found = paired(a, b)
        alike = equivalence(found.differences, FLAT) if found else None
        numbers = _both((first, a), (second, b))
        if found is None or alike is None or found.low is None or found.high is None:
            return Part(f"{numbers}, no test", "not shown")
        numbers += (
            f", difference {found.mean:+.2f} ({found.low:+.2f} to {found.high:+.2f}), "
            f"within {FLAT:g}: {p_equation(alike)}"
        )
        if found.low > FLAT or found.high < -FLAT:
            return Part(numbers, "does not hold")
        return Part(numbers, "holds", alike)

    def flat(self, cells: Sequence[Configuration], what: str) -> Part:
        """Whether the highest and the lowest of configurations are the same."""
        means = {c.name: fmean(self.of(c.name).values()) for c in cells if self.of(c.name)}
        counted = f"{what}: {len(means)} of {len(cells)} cells run"
        if len(means) < 2:
            return Part(counted, "not run")
        ends = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
        part = self.same(*ends)
        return Part(f"{counted}, {part.numbers}", part.verdict, part.p)

    def _unusable(self, *both: tuple[str, BySeed]) -> Part | None:
        """The part of a comparison that cannot be made; None for one that can."""
        if not all(values for _, values in both):
            return Part(_both(*both), "not run")
        if still := [name for name, _ in both if name in self.untested]:
            return Part(f"{_both(*both)}, {' and '.join(still)} did not move", "not tested")
        return None


def _both(*both: tuple[str, BySeed]) -> str:
    return ", ".join(f"{name} {describe([*values.values()])}" for name, values in both)


def _p(found: PairedDifference | None) -> str:
    return p_equation(found.p if found else None)


def _blocks_and_frequencies(compare: _Compare) -> Sequence[Part]:
    several = [cell for (n, m), cell in GRID.items() if n > 1 and m > 1]
    others = [cell for key, cell in GRID.items() if key != (1, 1)]
    means = {c.name: fmean(compare.of(c.name).values()) for c in others if compare.of(c.name)}
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
    """Whether it is below `SMALL`; not shown where `SMALL` is between its quartiles."""
    percent = overhead.get(name)
    if percent is None:
        return Part(f"{name}: not run", "not run")
    lower, upper = (overhead.get(f"{name}_{side}") for side in ("lower", "upper"))
    numbers = f"{name} {percent:+.2f} %"
    if lower is None or upper is None:
        return Part(numbers, "holds" if percent < SMALL else "does not hold")
    verdict: Verdict = "not shown"
    if not lower < SMALL <= upper:
        verdict = "holds" if upper < SMALL else "does not hold"
    return Part(f"{numbers} (quartiles {lower:+.2f} to {upper:+.2f})", verdict)
