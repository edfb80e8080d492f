"""Tables and plots: mean, deviation and test of every row, the same bytes from the same results."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from scipy.stats import ttest_rel

from s2sent.training.errors import ConfigError
from s2sent.training.experiments.arms.hypotheses import findings
from s2sent.training.experiments.arms.paper_experiments import EXPERIMENTS, chosen
from s2sent.training.experiments.arms.paper_tables import (
    experiment_table,
    hypotheses_table,
    read_results,
    write_tables,
)
from s2sent.training.files.jsonl import append_line
from tests.support.made_up_results import (
    BASE,
    NOTHING,
    ORDERED,
    SELECTED,
    by_seed,
    made_up,
    write_made_up,
)


def line(table: str, start: str) -> list[str]:
    (found,) = (row for row in table.splitlines() if row.startswith(f"| {start} |"))
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_a_table_shows_mean_deviation_number_and_the_p_of_pairs(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, {"last1": BASE, "last3-2d": SELECTED})
    table = experiment_table(EXPERIMENTS["table 2"], "simcse", results)
    head = line(table, "")
    cells = dict(zip(head, line(table, "Last3 2D"), strict=True))
    assert cells["n"] == "3"
    assert cells["average"] == "79.20 ± 0.26"
    assert cells["Δ"] == "+1.00"
    # By hand: differences 1.0, 1.1, 0.9; t = 1 / (0.1 / sqrt 3) = 17.32 with 2 degrees of freedom.
    assert ttest_rel(SELECTED, BASE).statistic == pytest.approx(17.32, abs=1e-2)
    assert cells["p"] == f"**{ttest_rel(SELECTED, BASE).pvalue:.3f}**" == "**0.003**"
    assert cells["parameters added, %"] == "0.2000 ± 0.0000"
    assert cells["paper, BERT-base: STS-B / SICK-R / average"] == "79.54 / 73.18 / 78.50"
    base = dict(zip(head, line(table, "Last1 base"), strict=True))
    assert (base["average"], base["Δ"], base["p"]) == ("78.20 ± 0.20", "", "")


def test_what_was_not_run_is_shown_as_such(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, {"last1": BASE})
    cells = line(experiment_table(EXPERIMENTS["table 2"], "simcse", results), "Last3 2D")
    assert cells[1:3] == ["0", "not run"]
    assert {verdict for _, verdict, _ in findings({}, NOTHING)} == {"not run"}


def test_one_seed_has_no_deviation_and_no_test(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, {"last1": BASE[:1], "last3-2d": SELECTED[:1]})
    table = experiment_table(EXPERIMENTS["table 2"], "simcse", results)
    cells = dict(zip(line(table, ""), line(table, "Last3 2D"), strict=True))
    assert (cells["average"], cells["Δ"], cells["p"]) == ("79.00", "+1.00", "no test")


def test_p_is_corrected_over_the_table(tmp_path: Path) -> None:
    """Two rows against one base: the smaller p counts twice."""
    results = write_made_up(
        tmp_path, {"last1": BASE, "last3-2d": SELECTED, "last3-avg": [78.1, 78.6, 78.2]}
    )
    table = experiment_table(EXPERIMENTS["table 2"], "simcse", results)
    cells = dict(zip(line(table, ""), line(table, "Last3 2D"), strict=True))
    assert cells["p"] == f"**{2 * ttest_rel(SELECTED, BASE).pvalue:.3f}**"


def test_one_seed_does_not_stand_beside_means_of_several(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, {"last1": BASE, "last3-2d": SELECTED[:1]})
    cells = line(experiment_table(EXPERIMENTS["table 2"], "simcse", results), "Last3 2D")
    assert cells[1:3] == ["1", "not run"]


def kept(steps: Sequence[int], folder: Path) -> str:
    """The p of runs that kept these steps, beside a base that learned."""
    write_made_up(folder, {"last1": BASE})
    for seed, (value, step) in enumerate(zip(SELECTED, steps, strict=True), start=1):
        changed = {"step": step, "weights": {"max_moved": 0.001}}
        append_line(folder / "simcse.jsonl", made_up("last3-2d", seed, value) | changed)
    table = experiment_table(EXPERIMENTS["table 2"], "simcse", read_results(folder, "simcse"))
    return dict(zip(line(table, ""), line(table, "Last3 2D"), strict=True))["p"]


def test_no_run_is_left_out_for_the_step_that_it_kept_or_how_far_its_weights_changed(
    tmp_path: Path,
) -> None:
    for number, steps in enumerate([(50, 50, 50), (50, 0, 50), (0, 0, 0)]):
        assert kept(steps, tmp_path / str(number)) == "**0.003**"


def test_initial_weights_beside_initial_weights_are_not_tested(tmp_path: Path) -> None:
    for name, values in {"last1": BASE, "last3-2d": SELECTED}.items():
        for seed, value in enumerate(values, start=1):
            append_line(tmp_path / "simcse.jsonl", made_up(name, seed, value) | {"step": 0})
    runs = read_results(tmp_path, "simcse")
    table = experiment_table(EXPERIMENTS["table 2"], "simcse", runs)
    cells = dict(zip(line(table, ""), line(table, "Last3 2D"), strict=True))
    assert (cells["Δ"], cells["p"]) == ("+1.00", "initial weights, not tested")


def test_runs_of_different_length_do_not_share_a_table(tmp_path: Path) -> None:
    write_made_up(tmp_path, {"last1": BASE})
    content = made_up("last1", 2, 78.0)
    content["recipe"]["training"]["steps"] += 1
    append_line(tmp_path / "simcse.jsonl", content)
    with pytest.raises(
        ConfigError, match=r"cannot be compared \(training.steps = \d+ against \d+\)"
    ):
        read_results(tmp_path, "simcse")


def test_all_tables_and_plots_are_written_and_the_same_again(tmp_path: Path) -> None:
    averages = {name: BASE for e in EXPERIMENTS.values() for name in e.configurations}
    write_made_up(tmp_path, averages | {"last3-2d": SELECTED})
    experiments = list(EXPERIMENTS.values())
    file = write_tables(experiments, tmp_path, ["simcse"], "reproduce it")
    text = file.read_text()
    assert "Made by `s2sent-train reproduce it`" in text
    assert all(f"### {experiment.title}" in text for experiment in experiments)
    plots = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert set(re.findall(r"\]\((.*svg)\)", text)) == set(plots)
    assert {"simcse-table-2.svg", "simcse-figure-8.svg"} <= set(plots)
    some = chosen(["table 2", "figure 8"])
    texts = {write_tables(some, tmp_path, ["simcse"], "reproduce it").read_text() for _ in range(2)}
    assert len(texts) == 1
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")} == plots


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no results"):
        write_tables(chosen(["table 2"]), tmp_path, ["simcse"], "reproduce it")


def test_what_the_paper_says_is_read_from_results_and_from_overhead(tmp_path: Path) -> None:
    noisy = {
        name: [run["scores"]["average"] for run in runs] for name, runs in by_seed(ORDERED).items()
    }
    results = write_made_up(tmp_path, noisy)
    table = hypotheses_table(results, {"latency": 0.1})
    assert "| **holds** |" in table
    assert re.search(
        r"last3-2d 7\S+ ± \S+ \(n = 5\), last3-1d 7\S+ ± \S+ \(n = 5\), p [=<] ", table
    )
    assert "latency +0.10 %" in table
