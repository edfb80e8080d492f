"""What the paper says: each verdict follows the numbers."""

from collections.abc import Mapping, Sequence

from s2sent.training.evaluation.results.statistics import NOT_SIGNIFICANT
from s2sent.training.experiments.arms.hypotheses import findings
from s2sent.training.experiments.tables import ByArm
from tests.support.made_up_results import NOTHING, ORDERED, around, by_seed


def judged(runs: ByArm, overhead: Mapping[str, float | None], start: str) -> tuple[str, str]:
    """The verdict on the statement that begins so, and its numbers."""
    (found,) = (each for each in findings(runs, overhead) if each[0].startswith(start))
    return found[1:]


def verdict(scores: Mapping[str, Sequence[float]], start: str) -> str:
    return judged(by_seed(scores), NOTHING, start)[0]


def test_the_order_of_tables_2_rows_holds_and_flips_with_the_numbers() -> None:
    assert verdict(ORDERED, "(a) Last3") == "holds"
    assert verdict({**ORDERED, "last3-1d": around(78.5)}, "(a) Last3") == "does not hold"
    assert verdict({**ORDERED, "last3-1d": around(77.95)}, "(a) Last3") == NOT_SIGNIFICANT
    assert verdict({**ORDERED, "last1": around(75.0)}, "(a) Last3") == "does not hold"
    assert verdict({**ORDERED, "last3-1d": []}, "(a) Last3") == "not run"


def test_what_is_said_of_pooling_flips_with_the_numbers() -> None:
    pooled = {"cls-last1-mlp": around(76.2), "cls-last3-2d-mlp": around(66.9)}
    assert verdict(pooled, "(e)") == "holds"
    assert verdict({**pooled, "cls-last3-2d-mlp": around(76.0)}, "(e)") == "does not hold"


def test_what_is_said_of_overhead_flips_with_the_numbers() -> None:
    def of(**overhead: float) -> str:
        return judged({}, overhead, "(f)")[0]

    assert of(parameters=0.18, latency=0.2) == "holds"
    assert of(parameters=0.18, latency=1.4) == "does not hold"
    assert of(parameters=0.18) == "not run"
    spread = {"parameters": 0.18, "latency": 0.2}
    assert of(**spread, latency_lower=-3, latency_upper=4) == "0.5 % is between the quartiles"
    assert of(**spread, latency_lower=0.1, latency_upper=0.3) == "holds"
    slow = {**spread, "latency": 2.0}
    assert of(**slow, latency_lower=1, latency_upper=3) == "does not hold"
    assert "parameters +0.18 %" in judged({}, {"parameters": 0.18}, "(f)")[1]


def test_a_statement_on_initial_weights_alone_is_not_tested() -> None:
    """A run that kept step 0 counts as any other, as long as one beside it has learned."""
    ours, theirs = {"last3-2d": around(78)}, {"last3-2d-static-features": around(77)}

    def kept(our_step: int, their_step: int) -> str:
        runs = by_seed(ours, our_step) | by_seed(theirs, their_step)
        return judged(runs, NOTHING, "X1")[0]

    assert kept(50, 50) == kept(50, 0) == kept(0, 50) == "holds"
    assert kept(0, 0) == "not tested"


def test_what_is_significant_alone_may_not_be_over_the_table() -> None:
    """Five comparisons: the least p of one must be below a fifth of 5 %."""
    weak = {"last3-2d": [1.0, 2.0, 2.2, 2.0, 1.5], "last3-2d-static-features": [0.5, 0.4, 2, 1, 1]}
    assert verdict(weak, "X1") == "holds"
    noise = [[1, 2, 1.5, 1.8, 1.1], [1.4, 1.2, 1.9, 1, 1.6], [1.2, 1.8, 1.1, 1.7, 1.5]]
    rows = dict(zip(("last3-1d", "last3-avg", "last1"), noise, strict=True))
    assert verdict({**weak, **rows}, "X1") == NOT_SIGNIFICANT
