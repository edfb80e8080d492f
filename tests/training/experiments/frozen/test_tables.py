"""Which runs of a file stand in one table: those of one schedule, on the same pairs."""

import json
from pathlib import Path
from typing import Any

import pytest

from s2sent.training.errors import ConfigError
from s2sent.training.experiments.frozen.tables import frozen_tables
from s2sent.training.experiments.frozen.train import CHOSEN_ON

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
        "chosen": {CHOSEN_ON: score, "R@1": score, "MRR@10": score},
        "moved": 0.2 if learns else None,
        "block_weights": None,
        "spread": 0.01 if learns else None,
    }
    return line | changes


def tables(folder: Path, *lines: dict[str, Any]) -> str:
    file = folder / "frozen.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return frozen_tables(file)


def rows(table: str, label: str) -> list[list[str]]:
    """The cells of every row with this label."""
    found = [row[2:-2].split(" | ") for row in table.splitlines() if row.startswith("|")]
    return [row for row in found if row[0] == label]


S2SENT, STATIC = "S2Sent, softmax over logits", "static weights, one per block"
SEEDS = [run("s2sent", seed, 70 + seed / 10) for seed in (1, 2, 3)]
BESIDE = [run("static-blocks", seed, 69 + seed / 5) for seed in (1, 2, 3)]


def test_what_chose_a_rate_is_in_no_table(tmp_path: Path) -> None:
    tuning = [run("s2sent", 0, score, rate=rate) for score, rate in ((71, 0.003), (72, 0.01))]
    last = run("last", 0, 60)
    assert tables(tmp_path, last, *tuning, *SEEDS) == tables(tmp_path, last, *SEEDS)


def test_two_runs_of_one_seed_are_refused(tmp_path: Path) -> None:
    """Of two rates, which no table could tell apart."""
    other = [run("s2sent", seed, 80 + seed / 10, rate=0.01) for seed in (1, 2, 3)]
    with pytest.raises(ConfigError, match="s2sent has two runs of seed 1 that differ in a rate"):
        tables(tmp_path, run("last", 0, 60), *SEEDS, *other)


def test_runs_that_looked_at_dev_more_often_have_a_table_of_their_own(tmp_path: Path) -> None:
    other = [run("s2sent", seed, 80, eval_every=10) for seed in (1, 2)]
    first, second = tables(tmp_path, run("last", 0, 60), *SEEDS, *other).split("### ")[1:]
    assert first.startswith("200 steps of 64 pairs, scored every 10 steps, of tiny")
    assert second.startswith("200 steps of 64 pairs, scored every 50 steps, of tiny")
    assert [rows(part, S2SENT)[0][2] for part in (first, second)] == ["2", "3"]
    assert all(len(rows(part, "last block")) == 1 for part in (first, second))


def opened(line: dict[str, Any], average: float, pairs: int = 0) -> dict[str, Any]:
    return line | {"tests": {"average": average} | ({"pairs_per_task": pairs} if pairs else {})}


def test_scores_on_other_numbers_of_test_pairs_are_refused(tmp_path: Path) -> None:
    whole = [opened(run("static-blocks", seed, 70), 70.0 + seed) for seed in (1, 2, 3)]
    thinned = [opened(run("s2sent", seed, 70), 80.0 + seed, 400) for seed in (1, 2, 3)]
    with pytest.raises(ConfigError, match="all pairs of the seven tests and others on 400 pairs"):
        tables(tmp_path, *whole, *thinned)


def test_runs_that_were_added_after_the_tests_stay_in_the_table(tmp_path: Path) -> None:
    """Until they are scored too, it has no column of the tests."""
    first = [opened(run("s2sent", seed, 70), 80.0) for seed in (1, 2)]
    table = tables(tmp_path, opened(run("last", 0, 60), 60.0), *first, run("s2sent", 3, 71))
    assert "STS-7" not in table
    assert rows(table, S2SENT)[0][2] == "3"


def test_a_run_counts_however_little_its_weights_changed(tmp_path: Path) -> None:
    """And whatever step it kept, while another run beside it has learned."""
    comparison = f"depth 6, contrastive: {STATIC}"
    expected = rows(tables(tmp_path, run("last", 0, 60), *SEEDS, *BESIDE), comparison)
    for changes in ({"moved": 0.01}, {"step": 0}):
        beside = [line | changes for line in BESIDE]
        assert rows(tables(tmp_path, run("last", 0, 60), *SEEDS, *beside), comparison) == expected


def test_initial_weights_alone_are_not_tested_and_correct_nothing(tmp_path: Path) -> None:
    """Holm's correction is over the one comparison that is left, of the second depth."""
    learned = [line | {"exit": 5} for line in (run("last", 0, 60), *SEEDS)]
    initial = [line | {"step": 0} for line in (*SEEDS, *BESIDE)]
    alone = rows(tables(tmp_path, *learned), "depth 5, contrastive: last block")
    table = tables(tmp_path, *learned, run("last", 0, 60), *initial)
    assert rows(table, "depth 5, contrastive: last block") == alone
    for control in (STATIC, "last block"):
        ((*_, p, answer, alike),) = rows(table, f"depth 6, contrastive: {control}")
        assert (p, answer, alike) == ("", "initial weights, not tested", "")
    (of_arm,) = rows(table, STATIC)
    assert of_arm[7] == "0 to 0; 3 of 3 at 0"


def test_where_weights_were_looked_at_is_said(tmp_path: Path) -> None:
    """Earlier lines describe the weights of the last step, beside scores of the kept one."""
    assert "| weight change, last step |" in tables(tmp_path, *SEEDS)
    kept = [{**line, "weight_change": 0.1} for line in SEEDS]
    for line in kept:
        del line["moved"]
    assert "| weight change |" in tables(tmp_path, *kept)


def test_a_file_of_runs_that_chose_a_rate_has_no_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no runs: run the experiment first"):
        tables(tmp_path, run("s2sent", 0, 70))
