"""Tables: mean, deviation and test of every row, the same bytes from the same results."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from scipy.stats import ttest_rel

from s2sent.training.errors import ConfigError
from s2sent.training.experiments.arms.configurations import EXPERIMENTS
from s2sent.training.experiments.arms.paper import experiment_tables, read_results, write_tables
from s2sent.training.experiments.engine import Series
from s2sent.training.experiments.tables import ByArm
from s2sent.training.files.jsonl import append_line
from tests.support.made_up_results import BASE, SELECTED, made_up, write_made_up

LESS_BASE = "Last3 2D, minus Last1 base"


def line(table: str, start: str) -> list[str]:
    (found,) = (row for row in table.splitlines() if row.startswith(f"| {start} |"))
    return [cell.strip() for cell in found.strip("|").split("|")]


def tables_of(results: ByArm) -> list[str]:
    return experiment_tables(EXPERIMENTS["table 2"], "simcse", results)


def compared(results: ByArm, start: str = LESS_BASE) -> dict[str, str]:
    """A row of the table of comparisons by its columns."""
    (table,) = (each for each in tables_of(results)[1:] if f"| {start} |" in each)
    return dict(zip(line(table, ""), line(table, start), strict=True))


def test_a_table_shows_mean_deviation_number_and_the_p_of_pairs(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, {"last1": BASE, "last3-2d": SELECTED})
    table = tables_of(results)[0]
    head = line(table, "")
    cells = dict(zip(head, line(table, "Last3 2D"), strict=True))
    assert cells["n"] == "3"
    assert cells["average"] == "79.20 ± 0.26"
    tested = compared(results)
    assert tested["average"] == "+1.00"
    # By hand: differences 1.0, 1.1, 0.9; t = 1 / (0.1 / sqrt 3) = 17.32 with 2 degrees of freedom.
    assert ttest_rel(SELECTED, BASE).statistic == pytest.approx(17.32, abs=1e-2)
    assert tested["p (Holm)"] == f"{ttest_rel(SELECTED, BASE).pvalue:.3f}" == "0.003"
    assert cells["paper, BERT-base: STS-B / SICK-R / average"] == "79.54 / 73.18 / 78.50"
    base = dict(zip(head, line(table, "Last1 base"), strict=True))
    assert base["average"] == "78.20 ± 0.20"


def test_what_was_not_run_is_shown_as_such(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, {"last1": BASE})
    (table,) = tables_of(results)
    assert line(table, "Last3 2D")[1:3] == ["0", "not run"]


def test_one_seed_has_no_deviation_and_no_test(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, {"last1": BASE[:1], "last3-2d": SELECTED[:1]})
    assert "79.00" in line(tables_of(results)[0], "Last3 2D")
    tested = compared(results)
    assert (tested["average"], tested["p (Holm)"]) == ("+1.00", "no test")


def test_p_is_corrected_over_the_table(tmp_path: Path) -> None:
    """Two rows against one base: the smaller p counts twice."""
    results = write_made_up(
        tmp_path, {"last1": BASE, "last3-2d": SELECTED, "last3-avg": [78.1, 78.6, 78.2]}
    )
    assert compared(results)["p (Holm)"] == f"{2 * ttest_rel(SELECTED, BASE).pvalue:.3f}"


def test_one_seed_does_not_stand_beside_means_of_several(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, {"last1": BASE, "last3-2d": SELECTED[:1]})
    (table,) = tables_of(results)
    assert line(table, "Last3 2D")[1:3] == ["1", "not run"]


def kept(steps: Sequence[int], folder: Path) -> str:
    """The p of runs that kept these steps, beside a base that learned."""
    write_made_up(folder, {"last1": BASE})
    for seed, (value, step) in enumerate(zip(SELECTED, steps, strict=True), start=1):
        append_line(folder / "simcse.jsonl", made_up("last3-2d", seed, value) | {"step": step})
    return compared(read_results(folder, "simcse"))["p (Holm)"]


def test_no_run_is_left_out_for_the_step_that_it_kept(tmp_path: Path) -> None:
    for number, steps in enumerate([(50, 50, 50), (50, 0, 50), (0, 0, 0)]):
        assert kept(steps, tmp_path / str(number)) == "0.003"


def test_initial_weights_beside_initial_weights_are_not_tested(tmp_path: Path) -> None:
    for name, values in {"last1": BASE, "last3-2d": SELECTED}.items():
        for seed, value in enumerate(values, start=1):
            append_line(tmp_path / "simcse.jsonl", made_up(name, seed, value) | {"step": 0})
    _, tested = tables_of(read_results(tmp_path, "simcse"))
    assert line(tested, LESS_BASE)[2::2] == ["+1.00", "", ""]
    assert line(tested, LESS_BASE)[5] == "initial weights, not tested"


def test_runs_of_different_length_do_not_share_a_table(tmp_path: Path) -> None:
    write_made_up(tmp_path, {"last1": BASE})
    content = made_up("last1", 2, 78.0)
    content["recipe"]["training"]["steps"] += 1
    append_line(tmp_path / "simcse.jsonl", content)
    with pytest.raises(
        ConfigError, match=r"cannot be compared \(training.steps = \d+ against \d+\)"
    ):
        read_results(tmp_path, "simcse")


def test_all_tables_are_written_and_the_same_again(tmp_path: Path) -> None:
    averages = {name: BASE for each in EXPERIMENTS.values() for name in each.configurations}
    write_made_up(tmp_path, averages | {"last3-2d": SELECTED})
    series = Series(tmp_path, tmp_path.parent, tmp_path.name, command="reproduce it")
    text = write_tables(series).read_text()
    assert "Made by `s2sent-train reproduce it`" in text
    assert all(f"### {experiment.title}" in text for experiment in EXPERIMENTS.values())
    assert write_tables(series).read_text() == text


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no results"):
        write_tables(Series(tmp_path, tmp_path, "none"))


def test_rows_that_the_paper_orders_are_tested_by_themselves(tmp_path: Path) -> None:
    """Holm's correction is over these two, without the comparisons with the base."""
    avg, one, two = [76.0, 76.1, 76.3], [77.0, 77.2, 77.1], [78.0, 78.4, 78.1]
    rows = {"last1": BASE, "last3-avg": avg, "last3-1d": one, "last3-2d": two}
    results = write_made_up(tmp_path, rows)
    p = sorted(float(ttest_rel(*pair).pvalue) for pair in ((two, one), (one, avg)))
    found = [
        compared(results, pair)["p (Holm)"]
        for pair in ("Last3 2D, minus Last3 avg+1D", "Last3 avg+1D, minus Last3 avg")
    ]
    assert sorted(found) == sorted([f"{2 * p[0]:.3f}", f"{max(2 * p[0], p[1]):.3f}"])
