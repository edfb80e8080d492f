"""What the paper says: each verdict follows the numbers."""

from collections.abc import Mapping, Sequence

from s2sent.training.evaluation.results.statistics import NOT_SIGNIFICANT
from s2sent.training.experiments.arms.hypotheses import Finding, findings
from s2sent.training.experiments.arms.paper_experiments import EXPERIMENTS
from tests.support.made_up_results import NOTHING, ORDERED, around, by_seed


def verdict(scores: Mapping[str, Sequence[float]], start: str) -> str:
    found = [
        finding
        for finding in findings(by_seed(scores), NOTHING)
        if finding.statement.startswith(start)
    ]
    assert len(found) == 1
    return found[0].verdict


def test_the_order_of_tables_2_rows_holds_and_flips_with_the_numbers() -> None:
    assert verdict(ORDERED, "(a) Last3") == "holds"
    assert verdict({**ORDERED, "last3-1d": around(78.5)}, "(a) Last3") == "does not hold"
    assert verdict({**ORDERED, "last3-1d": around(77.95)}, "(a) Last3") == NOT_SIGNIFICANT
    assert verdict({**ORDERED, "last1": around(75.0)}, "(a) Last3") == "does not hold"
    assert verdict({**ORDERED, "last3-1d": []}, "(a) Last3") == "not run"


def test_what_is_said_of_frequencies_reduction_and_pooling_flip_with_the_numbers() -> None:
    names = {0: "last3-2d-m0", 1: "last3-2d-m1", 4: "last3-2d", 8: "last3-2d-m8"}
    squeezes = {name: around(76 + m) for m, name in names.items()}
    assert verdict(squeezes, "(b)") == "holds"
    assert verdict({**squeezes, "last3-2d-m8": around(76.5)}, "(b)") == "does not hold"

    reductions = {f"last3-2d-r{r}": around(78) for r in (4, 8, 16, 24)} | {"last3-2d": around(78)}
    ends = {"last3-2d-r1": around(77), "last3-2d-r48": around(77)}
    assert verdict({**reductions, **ends}, "(d)") == "holds"
    assert verdict({**reductions, **ends, "last3-2d-r48": around(79)}, "(d)") == "does not hold"
    assert verdict({**reductions, **ends, "last3-2d-r8": around(79)}, "(d)") == "does not hold"

    pooled = {"cls-last1-mlp": around(76.2), "cls-last3-2d-mlp": around(66.9)}
    assert verdict(pooled, "(e)") == "holds"
    assert verdict({**pooled, "cls-last3-2d-mlp": around(76.0)}, "(e)") == "does not hold"


def test_what_is_said_of_blocks_and_frequencies_flips_with_the_numbers() -> None:
    grid = {name: around(78) for name in EXPERIMENTS["figure 6"].configurations}
    assert verdict({**grid, "last1-1d-m1": around(76)}, "(c)") == "holds"
    assert verdict({**grid, "last1-1d-m1": around(79)}, "(c)") == "does not hold"
    uneven = {**grid, "last1-1d-m1": around(76), "last6-2d-m8": around(79)}
    assert verdict(uneven, "(c)") == "does not hold"


def test_what_is_said_of_overhead_flips_with_the_numbers() -> None:
    def judged(**overhead: float) -> Finding:
        (found,) = (f for f in findings({}, overhead) if f.statement.startswith("(f)"))
        return found

    assert judged(parameters=0.18, latency=0.2).verdict == "holds"
    assert judged(parameters=0.18, latency=1.4).verdict == "does not hold"
    assert judged(parameters=0.18).verdict == "not run"
    spread = {"parameters": 0.18, "latency": 0.2}
    assert (
        judged(**spread, latency_lower=-3, latency_upper=4).verdict
        == "0.5 % is between the quartiles"
    )
    assert judged(**spread, latency_lower=0.1, latency_upper=0.3).verdict == "holds"
    slow = {**spread, "latency": 2.0}
    assert judged(**slow, latency_lower=1, latency_upper=3).verdict == "does not hold"
    assert "parameters +0.18 %" in judged(parameters=0.18).numbers


def test_a_statement_on_initial_weights_alone_is_not_tested() -> None:
    """A run that kept step 0 counts as any other, as long as one beside it has learned."""
    ours, theirs = {"last3-2d": around(78)}, {"last3-2d-static-features": around(77)}

    def judged(our_step: int, their_step: int) -> str:
        runs = by_seed(ours, our_step) | by_seed(theirs, their_step)
        (found,) = (f for f in findings(runs, NOTHING) if f.statement.startswith("X1"))
        return found.verdict

    assert judged(50, 50) == judged(50, 0) == judged(0, 50) == "holds"
    assert judged(0, 0) == "not tested"


def test_what_is_significant_alone_may_not_be_over_the_table() -> None:
    """Five comparisons: the least p of one must be below a fifth of 5 %."""
    weak = {"last3-2d": [1.0, 2.0, 2.2, 2.0, 1.5], "last3-2d-static-features": [0.5, 0.4, 2, 1, 1]}
    assert verdict(weak, "X1") == "holds"
    noise = [[1, 2, 1.5, 1.8, 1.1], [1.4, 1.2, 1.9, 1, 1.6], [1.2, 1.8, 1.1, 1.7, 1.5]]
    rows = dict(zip(("last3-1d", "last3-avg", "last1"), noise, strict=True))
    assert verdict({**weak, **rows}, "X1") == NOT_SIGNIFICANT
