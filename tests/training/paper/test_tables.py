"""Tables and plots: mean, deviation and test of every row, the same bytes from the same results."""

import json
import re
from pathlib import Path

import pytest
from scipy.stats import ttest_ind

from tests.support.made_up_results import (
    BASE,
    NOTHING,
    ORDERED,
    SELECTED,
    write_made_up,
)
from training.errors import ConfigError
from training.paper.claims import findings
from training.paper.experiments import EXPERIMENTS, chosen
from training.paper.results import read_results
from training.paper.tables import claims_table, experiment_table, write_tables


def line(table: str, start: str) -> list[str]:
    (found,) = (row for row in table.splitlines() if row.startswith(f"| {start} |"))
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_a_table_shows_mean_deviation_number_and_welchs_p(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, {"last1": BASE, "last3-2d": SELECTED})
    table = experiment_table(EXPERIMENTS["table 2"], results)
    head = line(table, "")
    cells = dict(zip(head, line(table, "Last3 2D"), strict=True))
    assert cells["n"] == "3"
    assert cells["average"] == "79.20 ± 0.26"
    assert cells["Δ"] == "+1.00"
    p = ttest_ind(SELECTED, BASE, equal_var=False).pvalue
    assert cells["p"] == f"**{p:.3f}**"
    # By hand: means 1.0 apart, variances 0.07 and 0.04, so t = 1 / sqrt(0.11 / 3) = 5.222.
    assert ttest_ind(SELECTED, BASE, equal_var=False).statistic == pytest.approx(5.222, abs=1e-3)
    assert cells["parameters added, %"] == "0.2000 ± 0.0000"
    assert cells["paper, BERT-base: STS-B / SICK-R / average"] == "79.54 / 73.18 / 78.50"
    base = dict(zip(head, line(table, "Last1 base"), strict=True))
    assert (base["average"], base["Δ"], base["p"]) == ("78.20 ± 0.20", "", "")


def test_what_was_not_run_is_shown_as_such(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, {"last1": BASE})
    cells = line(experiment_table(EXPERIMENTS["table 2"], results), "Last3 2D")
    assert cells[1:3] == ["0", "not run"]
    verdicts = {found.claim[:3]: found.verdict for found in findings({}, NOTHING)}
    assert set(verdicts.values()) == {"not run"}


def test_one_seed_has_no_deviation_and_no_test(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, {"last1": BASE[:1], "last3-2d": SELECTED[:1]})
    table = experiment_table(EXPERIMENTS["table 2"], results)
    cells = dict(zip(line(table, ""), line(table, "Last3 2D"), strict=True))
    assert (cells["average"], cells["Δ"], cells["p"]) == ("79.00", "+1.00", "no test")


def test_runs_of_different_length_do_not_share_a_table(tmp_path: Path) -> None:
    write_made_up(tmp_path, {"last1": BASE})
    file = tmp_path / "simcse" / "last1.seed2.json"
    content = json.loads(file.read_text())
    content["recipe"]["training"]["steps"] += 1
    file.write_text(json.dumps(content))
    with pytest.raises(
        ConfigError, match=r"cannot be compared \(training.steps = \d+ against \d+\)"
    ):
        read_results(tmp_path, "simcse")


def test_all_tables_and_plots_are_written_and_the_same_again(tmp_path: Path) -> None:
    averages = {name: BASE for e in EXPERIMENTS.values() for name in e.configurations}
    write_made_up(tmp_path, averages | {"last3-2d": SELECTED})
    experiments = list(EXPERIMENTS.values())
    file = write_tables(experiments, tmp_path, ["simcse"], "the command")
    text = file.read_text()
    assert "Made by `the command`" in text
    assert all(f"### {experiment.title}" in text for experiment in experiments)
    plots = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert set(re.findall(r"\]\((.*svg)\)", text)) == set(plots)
    assert {"simcse-figure-6.svg", "simcse-figure-7.svg", "simcse-figure-8.svg"} <= set(plots)
    write_tables(experiments, tmp_path, ["simcse"], "the command")
    assert file.read_text() == text
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")} == plots


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no results"):
        write_tables(chosen(["table 2"]), tmp_path, ["simcse"], "the command")


def test_claims_are_read_from_results_and_from_overhead(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, ORDERED)
    table = claims_table(results, {"latency": 0.1})
    assert "| **holds** |" in table
    assert "last3-2d 78.00 ± 0.10 (n = 3), last3-1d 77.00 ± 0.10 (n = 3), p = " in table
    assert "latency +0.10 %" in table
