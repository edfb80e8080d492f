"""Which runs of a file stand in one table: those of one schedule, on the same pairs."""

from typing import Any

import pytest

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import WITHOUT_OVERLAP
from s2sent.training.experiments.frozen.run import frozen_tables

FIXED = ("last", "mean")


def run(arm: str, seed: int, score: float, **changes: Any) -> dict[str, Any]:
    """A line of results whose every score is ``score``."""
    rate, eval_every = changes.pop("rate", 0.003), changes.pop("eval_every", 50)
    learns = arm not in FIXED
    line = {
        "backbone": "tiny",
        "corpus_sha256": "0" * 64,
        "exit": 6,
        "objective": "contrastive",
        "arm": arm,
        "seed": seed,
        "schedule": {
            "steps": 200 if learns else 0,
            "learning_rate": rate if learns else 0.0,
            "eval_every": eval_every,
            "batch_size": 64,
        },
        "parameters": 10 if learns else 0,
        "step": 50 if learns else 0,
        "chosen": {WITHOUT_OVERLAP: score},
        "tests": {"average": score},
    }
    return line | changes


def tables(*lines: dict[str, Any]) -> str:
    return "\n\n".join(frozen_tables(lines))


def rows(table: str, label: str) -> list[list[str]]:
    """The cells of every row with this label."""
    found = [row[2:-2].split(" | ") for row in table.splitlines() if row.startswith("|")]
    return [row for row in found if row[0] == label]


S2SENT, STATIC = "S2Sent, softmax over logits", "static weights, one per block"
SEEDS = [run("s2sent", seed, 70 + seed / 10) for seed in (1, 2, 3)]
BESIDE = [run("static-blocks", seed, 69 + seed / 5) for seed in (1, 2, 3)]


def test_what_chose_a_rate_is_in_no_table() -> None:
    tuning = [run("s2sent", 0, score, rate=rate) for score, rate in ((71, 0.003), (72, 0.01))]
    last = run("last", 0, 60)
    assert tables(last, *tuning, *SEEDS) == tables(last, *SEEDS)


def test_two_runs_of_one_seed_are_refused() -> None:
    """Of two rates, which no table could tell apart."""
    other = [run("s2sent", seed, 80 + seed / 10, rate=0.01) for seed in (1, 2, 3)]
    with pytest.raises(ConfigError, match="s2sent has two runs of seed 1 that differ in a rate"):
        tables(run("last", 0, 60), *SEEDS, *other)


def test_runs_of_another_schedule_have_a_table_of_their_own() -> None:
    last = [run("last", 0, 60, eval_every=every) for every in (10, 50)]
    other = [run("s2sent", seed, 80, eval_every=10) for seed in (1, 2)]
    first, second = tables(*last, *SEEDS, *other).split("### ")[1:]
    alone = tables(last[1], *SEEDS).partition("\n\n")[2]
    assert second.partition("\n\n")[2].strip() == alone
    assert "scored every 10 steps of 64 pairs" in first.partition("\n")[0]
    assert [rows(part, S2SENT)[0][2] for part in (first, second)] == ["2", "3"]


def opened(line: dict[str, Any], average: float, pairs: int = 0) -> dict[str, Any]:
    return line | {"tests": {"average": average} | ({"pairs_per_task": pairs} if pairs else {})}


def test_scores_on_other_numbers_of_test_pairs_are_refused() -> None:
    whole = [opened(run("static-blocks", seed, 70), 70.0 + seed) for seed in (1, 2, 3)]
    thinned = [opened(run("s2sent", seed, 70), 80.0 + seed, 400) for seed in (1, 2, 3)]
    with pytest.raises(ConfigError, match="all pairs of the seven tests and others on 400 pairs"):
        tables(*whole, *thinned)


def test_scores_of_all_runs_are_columns_and_the_last_is_compared() -> None:
    """A run without the tests, or of a file without any, does not end the tables."""
    retrieval = {WITHOUT_OVERLAP: 70, "R@1": 80, "MRR@10": 90}
    of = {"chosen": retrieval, "tests": {}, "objective": "distillation", "teacher": "Large"}
    table = tables(*(line | of for line in (run("last", 0, 60), *SEEDS)))
    assert table.startswith("STS-7: not scored.\n\n**Depth 6, distillation Large**\n")
    ((*_, dev, recall, rank, _),) = rows(table, S2SENT)
    assert (dev, recall, rank) == ("70.00 ± 0.00", "80.00 ± 0.00", "90.00 ± 0.00")
    assert "| S2Sent minus | pairs | MRR@10 |" in table
    table = tables(run("last", 0, 60), *SEEDS[:2], SEEDS[2] | {"tests": {}})
    assert f"| pairs | {WITHOUT_OVERLAP} |" in table
    assert rows(table, S2SENT)[0][2] == "3"


def test_a_run_counts_whatever_step_it_kept() -> None:
    """While another run beside it has learned."""
    comparison = f"depth 6, contrastive: {STATIC}"
    expected = rows(tables(run("last", 0, 60), *SEEDS, *BESIDE), comparison)
    beside = [line | {"step": 0} for line in BESIDE]
    assert rows(tables(run("last", 0, 60), *SEEDS, *beside), comparison) == expected


def test_initial_weights_alone_are_not_tested_and_correct_nothing() -> None:
    """Holm's correction is over the one comparison that is left, of the second depth."""
    learned = [line | {"exit": 5} for line in (run("last", 0, 60), *SEEDS)]
    initial = [line | {"step": 0} for line in (*SEEDS, *BESIDE)]
    alone = rows(tables(*learned), "depth 5, contrastive: last block")
    table = tables(*learned, run("last", 0, 60), *initial)
    assert rows(table, "depth 5, contrastive: last block") == alone
    for control in (STATIC, "last block"):
        ((*_, p, answer, alike),) = rows(table, f"depth 6, contrastive: {control}")
        assert (p, answer, alike) == ("", "initial weights, not tested", "")
    (of_arm,) = rows(table, STATIC)
    assert of_arm[-1] == "0 to 0; 3 of 3 at 0"
