"""Running experiments: what is done is skipped, what does not fit is refused, tables say it all."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import ttest_ind

from tests.support.tiny import tiny_backbone
from tests.support.tiny_data import tiny_data
from tests.support.tiny_tasks import tiny_tasks
from training.__main__ import main
from training.errors import ConfigError, Interrupted
from training.evaluation.sts import TASKS
from training.paper.cells import Cell, Series, cells, claimed, corpus_sha256
from training.paper.claims import Finding, findings, welch
from training.paper.configurations import S2SENT
from training.paper.experiments import EXPERIMENTS, chosen
from training.paper.latency import measure_latency
from training.paper.results import Results, read_results
from training.paper.runs import run
from training.paper.tables import claims_table, experiment_table, write_tables
from training.recipe import Recipe
from training.record import source_sha256, write_json

NOTHING: dict[str, float | None] = {}


class StandIn:
    """Stands for the trainer and the scores: writes the record of a run that it counts."""

    def __init__(self, corpus: str = "") -> None:
        self.trained: list[str] = []
        self.resumed: list[bool] = []
        self.corpus = corpus
        self.interrupt = False

    def train(self, recipe: Recipe, data: Path, output: Path, *, resume: bool) -> Any:
        if self.interrupt:
            output.with_name(output.name + ".partial").mkdir(parents=True)
            raise Interrupted("Interrupted at step 1.")
        self.trained.append(output.stem)
        self.resumed.append(resume)
        dev = {"score": 80.0, "step": 2, "curve": [[0, 79.0], [2, 80.0]]}
        record = {"recipe": recipe.as_table(), "corpus": {"sha256": self.corpus}, "dev": dev}
        write_json(output / "training.json", record)
        return SimpleNamespace(seconds=1.5, stopped=False)

    def score(self, checkpoint: Path, data: Path, *, transfer: bool) -> dict[str, Any]:
        assert checkpoint.is_dir()
        accuracy = {"transfer": {"MR": 80.0, "average": 80.0}} if transfer else {}
        return {"scores": {"average": 79.0}, **accuracy}


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backbone") / "tiny"
    return tiny_backbone(folder, width=64, num_layers=6)


@pytest.fixture
def series(tmp_path: Path, backbone: Path) -> Series:
    data = tiny_data(tmp_path / "data")
    return Series(data=data, output=tmp_path / "out", backbone=str(backbone), budget="smoke")


def go(keys: Sequence[str], series: Series, stand_in: StandIn) -> None:
    experiments = chosen(keys)
    todo, _ = cells(experiments, series)
    stand_in.corpus = corpus_sha256(series.data, todo)[todo[0].file]
    run(experiments, series, train=stand_in.train, score=stand_in.score)


def test_a_run_that_has_its_result_is_skipped_and_its_checkpoint_is_gone(series: Series) -> None:
    stand_in = StandIn()
    go(["table 3"], series, stand_in)
    names = ["cls-last1.seed1", "last1.seed1", "cls-last3-2d.seed1", "last3-2d.seed1"]
    assert stand_in.trained == names
    go(["figure 5", "table 3"], series, stand_in)
    more = ["last3-2d-m0.seed1", "last3-2d-m1.seed1", "last3-2d-m8.seed1"]
    assert stand_in.trained == names + more
    left = sorted(path.name for path in (series.folder / "simcse").iterdir())
    assert left == sorted(f"{name}.json" for name in names + more)


def test_a_whole_seed_is_run_before_the_next(series: Series) -> None:
    stand_in = StandIn()
    go(["table 4"], replace(series, seeds=(5, 2)), stand_in)
    assert stand_in.trained == [f"{c}.seed{s}" for s in (5, 2) for c in ("last1", "last3-2d")]


def test_an_interrupted_run_goes_on_with_the_same_command(series: Series) -> None:
    stand_in = StandIn()
    stand_in.interrupt = True
    with pytest.raises(Interrupted, match="give the same command again"):
        go(["table 4"], series, stand_in)
    stand_in.interrupt = False
    go(["table 4"], series, stand_in)
    assert stand_in.resumed == [True, False]


def test_a_checkpoint_that_was_not_scored_is_scored_without_training(series: Series) -> None:
    stand_in = StandIn()
    go(["table 4"], replace(series, keep=True), stand_in)
    for file in (series.folder / "simcse").glob("*.json"):
        file.unlink()
    go(["table 4"], series, stand_in)
    assert len(stand_in.trained) == 2
    assert not list(series.folder.rglob("*.checkpoint"))
    assert len(list(series.folder.rglob("*.json"))) == 2


def test_a_result_without_transfer_is_run_again_for_table_4(series: Series) -> None:
    stand_in = StandIn()
    go(["table 3"], series, stand_in)
    go(["table 4"], series, stand_in)
    assert stand_in.trained[4:] == ["last1.seed1", "last3-2d.seed1"]
    go(["table 3", "table 4"], series, stand_in)
    assert len(stand_in.trained) == 6


def test_a_result_of_another_recipe_is_refused_before_anything_runs(series: Series) -> None:
    stand_in = StandIn()
    go(["table 4"], series, stand_in)
    with pytest.raises(ConfigError) as refused:
        go(["table 3"], replace(series, steps=9), stand_in)
    message = str(refused.value)
    assert "last1.seed1.json holds another recipe than simcse last1 seed 1" in message
    assert "training.steps = 4 against 9" in message
    assert len(stand_in.trained) == 2


def test_a_result_of_another_corpus_is_refused(series: Series) -> None:
    stand_in = StandIn()
    go(["table 4"], series, stand_in)
    file = series.folder / "simcse" / "last1.seed1.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "corpus_sha256": "0" * 64}))
    with pytest.raises(ConfigError, match="was trained on the corpus 000000000000"):
        go(["table 4"], series, stand_in)


def test_a_file_that_is_no_result_is_refused(series: Series) -> None:
    file = series.folder / "simcse" / "last1.seed1.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"half":')
    with pytest.raises(ConfigError, match=r"last1.seed1.json is no result of a run: delete it"):
        go(["table 4"], series, StandIn())


def test_what_does_not_fit_the_backbone_is_left_out_with_a_reason(series: Series) -> None:
    todo, left_out = cells(chosen(["figure 6"]), series)
    assert len(todo) == 15
    assert left_out["last12-2d"] == "it weighs 12 blocks, and the backbone has 6"
    _, left_out = cells(chosen(["table 3", "table 4"]), replace(series, objectives=("prompt",)))
    assert left_out == {"table 3 with prompt": "the paper has no such rows"}
    with pytest.raises(ConfigError, match="Nothing is left to run"):
        cells(chosen(["table 3"]), replace(series, objectives=("prompt",)))


def test_a_run_of_another_process_is_left_to_it(series: Series) -> None:
    todo, _ = cells(chosen(["table 4"]), series)
    lock = todo[0].file.with_suffix(".lock")
    holder = _hold(lock)
    try:
        stand_in = StandIn()
        with claimed(lock) as owner:
            assert owner == holder.pid
        go(["table 4"], series, stand_in)
        assert stand_in.trained == ["last3-2d.seed1"]
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert lock.read_text() == str(holder.pid)
    go(["table 4"], series, stand_in)
    assert stand_in.trained == ["last3-2d.seed1", "last1.seed1"]
    assert not lock.exists()


def _hold(lock: Path) -> subprocess.Popen[bytes]:
    """Another process that claims a run, and has done so when this returns."""
    code = (
        "import sys, pathlib\nfrom training.paper.cells import claimed\n"
        f"with claimed(pathlib.Path({str(lock)!r})):\n print('held', flush=True)\n sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def test_a_lock_names_its_process_while_it_is_held(tmp_path: Path) -> None:
    lock = tmp_path / "cell.lock"
    with claimed(lock) as owner:
        assert owner is None
        assert lock.read_text() == str(os.getpid())
        with claimed(lock) as other:
            assert other == os.getpid()
    assert not lock.exists()


def made_up(name: str, seed: int, average: float) -> dict[str, Any]:
    recipe = EXPERIMENTS["table 2"].configurations.get(name, S2SENT)
    tasks = {task: average + shift for shift, task in enumerate(TASKS, start=-3)}
    cosines = {f"{low}-{low + 1}": [0.1 * low, 0.1 * low + 0.2] for low in range(5)}
    return {
        "configuration": name,
        "objective": "simcse",
        "seed": seed,
        "recipe": recipe.recipe(
            objective="simcse", backbone="pypi:some", budget="short", seed=seed
        ).as_table(),
        "corpus_sha256": "a" * 64,
        "dev": average + 5,
        "step": 50,
        "curve": [[0, 80.0]],
        "seconds": 60.0,
        "mean_block_weights": None if name == "last1" else [0.2, 0.3, 0.5],
        "scores": {**tasks, "average": average},
        "by_gold": {"groups": {name: {"mean": 0.5} for name in cosines}, "spread": 0.2},
        "cosines": cosines,
        "geometry": {"alignment": 0.2, "uniformity": -2.0, "pos_over_random": 0.1},
        "parameters": {"backbone": 1000, "selector": 0 if name == "last1" else 2},
        "versions": {"torch": "2"},
    }


def write_made_up(folder: Path, averages: Mapping[str, Sequence[float]]) -> Results:
    for name, values in averages.items():
        for seed, value in enumerate(values, start=1):
            write_json(folder / "simcse" / f"{name}.seed{seed}.json", made_up(name, seed, value))
    return read_results(folder, "simcse")


BASE, SELECTED = [78.0, 78.4, 78.2], [79.0, 79.5, 79.1]


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


def verdict(scores: Mapping[str, Sequence[float]], start: str) -> str:
    found = [finding for finding in findings(scores, NOTHING) if finding.claim.startswith(start)]
    assert len(found) == 1
    return found[0].verdict


def around(mean: float) -> list[float]:
    return [mean - 0.1, mean, mean + 0.1]


ORDERED = {
    "last1": around(76.0),
    "last3-avg": around(76.2),
    "last3-1d": around(77.0),
    "last3-2d": around(78.0),
}


def test_the_order_of_tables_2_rows_holds_and_flips_with_the_numbers() -> None:
    assert verdict(ORDERED, "(a) Last3") == "holds"
    assert verdict({**ORDERED, "last3-1d": around(78.5)}, "(a) Last3") == "does not hold"
    assert verdict({**ORDERED, "last3-1d": around(77.95)}, "(a) Last3") == "not significant"
    assert verdict({**ORDERED, "last1": around(75.0)}, "(a) Last3") == "does not hold"
    assert verdict({**ORDERED, "last3-1d": []}, "(a) Last3") == "not run"


def test_claims_on_frequencies_reduction_and_pooling_flip_with_the_numbers() -> None:
    names = {0: "last3-2d-m0", 1: "last3-2d-m1", 4: "last3-2d", 8: "last3-2d-m8"}
    squeezes = {name: around(76 + m) for m, name in names.items()}
    assert verdict(squeezes, "(b)") == "holds"
    assert verdict({**squeezes, "last3-2d-m8": around(76.5)}, "(b)") == "does not hold"

    reductions = {f"last3-2d-r{r}": around(78) for r in (4, 8, 16, 24)} | {"last3-2d": around(78)}
    ends = {"last3-2d-r1": around(77), "last3-2d-r48": around(77)}
    assert verdict({**reductions, **ends}, "(d)") == "holds"
    assert verdict({**reductions, **ends, "last3-2d-r48": around(79)}, "(d)") == "does not hold"
    assert verdict({**reductions, **ends, "last3-2d-r8": around(79)}, "(d)") == "does not hold"

    pooled = {"cls-last1": around(76.2), "cls-last3-2d": around(66.9)}
    assert verdict(pooled, "(e)") == "holds"
    assert verdict({**pooled, "cls-last3-2d": around(76.0)}, "(e)") == "does not hold"


def test_the_claim_on_blocks_and_frequencies_flips_with_the_numbers() -> None:
    grid = {name: around(78) for name in EXPERIMENTS["figure 6"].configurations}
    assert verdict({**grid, "last1-1d-m1": around(76)}, "(c)") == "holds"
    assert verdict({**grid, "last1-1d-m1": around(79)}, "(c)") == "does not hold"
    uneven = {**grid, "last1-1d-m1": around(76), "last6-2d-m8": around(79)}
    assert verdict(uneven, "(c)") == "does not hold"


def test_the_claim_on_overhead_flips_with_the_numbers() -> None:
    def judged(**overhead: float) -> Finding:
        (found,) = (f for f in findings({}, overhead) if f.claim.startswith("(f)"))
        return found

    assert judged(parameters=0.18, latency=0.2).verdict == "holds"
    assert judged(parameters=0.18, latency=1.4).verdict == "does not hold"
    assert judged(parameters=0.18).verdict == "not run"
    spread = {"parameters": 0.18, "latency": 0.2}
    assert judged(**spread, latency_lower=-3, latency_upper=4).verdict == "not significant"
    assert judged(**spread, latency_lower=0.1, latency_upper=0.3).verdict == "holds"
    slow = {**spread, "latency": 2.0}
    assert judged(**slow, latency_lower=1, latency_upper=3).verdict == "does not hold"
    assert "parameters +0.18 %" in judged(parameters=0.18).numbers


def test_claims_are_read_from_results_and_from_overhead(tmp_path: Path) -> None:
    results = write_made_up(tmp_path, ORDERED)
    table = claims_table(results, {"latency": 0.1})
    assert "| **holds** |" in table
    assert "last3-2d 78.00 ± 0.10 (n = 3), last3-1d 77.00 ± 0.10 (n = 3), p = " in table
    assert "latency +0.10 %" in table


def test_welch_needs_two_values_that_differ() -> None:
    assert welch([1.0], [1.0, 2.0]) is None
    assert welch([1.0, 1.0], [2.0, 2.0]) is None
    assert welch(BASE, SELECTED) == ttest_ind(BASE, SELECTED, equal_var=False).pvalue


def test_from_the_command_to_the_tables_on_a_tiny_backbone(tmp_path: Path, backbone: Path) -> None:
    data = tiny_tasks(tiny_data(tmp_path / "data"))
    options = ["--data", str(data), "--output", str(tmp_path / "out"), "--backbone", str(backbone)]
    command = ["reproduce", *options, "--budget", "smoke", "--steps", "2", "--table", "4"]
    _succeed(command)
    folder = tmp_path / "out" / backbone.name
    content = json.loads((folder / "simcse" / "last3-2d.seed1.json").read_text())
    assert set(content["scores"]) == {*TASKS, "average"}
    assert content["scores"]["average"] == pytest.approx(fmean(content["scores"][t] for t in TASKS))
    assert [step for step, _ in content["curve"]] == [0, 2]
    assert sum(content["mean_block_weights"]) == pytest.approx(1, abs=1e-3)
    assert content["weights"]["blocks"] == [4, 5, 6]
    assert 0 <= content["weights"]["moved"] < 0.1
    assert content["parameters"]["selector"] == 64 * 5 + 5 + 3 * (5 * 64 + 64)
    assert content["drift"] < 1e-5
    assert content["source_sha256"] == source_sha256()
    assert "dirty" in content
    assert isinstance(content["shuffled"], float)
    assert set(content["transfer"]) >= {"MR", "MRPC", "average"}
    assert "| Last3 2D | 1 |" in (folder / "tables.md").read_text()

    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")}
    _succeed(command)
    _succeed([*command, "--only-tables"])
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")} == before


def test_latency_is_measured_once_and_stands_in_the_tables(tmp_path: Path, backbone: Path) -> None:
    options = ["--data", str(tmp_path), "--output", str(tmp_path / "out"), "--budget", "smoke"]
    command = ["reproduce", *options, "--backbone", str(backbone), "--latency"]
    _succeed(command)
    folder = tmp_path / "out" / backbone.name
    content = json.loads((folder / "overhead.json").read_text())
    assert [(c["precision"], c["rounds"]) for c in content["cells"]] == [("fp32", 4), ("bf16", 4)]
    text = (folder / "tables.md").read_text()
    counts = content["parameters"]
    assert f"{counts['selector']:,} parameters beside {counts['backbone']:,}" in text
    for cell in content["cells"]:
        added = cell["selector"]["median_percent"]
        assert f"| {cell['precision']}, 1 x 32 | 4 | " in text
        assert f" | {added:+.2f} | " in text
    before = (folder / "overhead.json").stat().st_mtime_ns
    _succeed(command)
    assert (folder / "overhead.json").stat().st_mtime_ns == before


def test_latency_needs_three_blocks(tmp_path: Path) -> None:
    shallow = tiny_backbone(tmp_path / "shallow", num_layers=2)
    series = Series(data=tmp_path, output=tmp_path / "out", backbone=str(shallow))
    with pytest.raises(ConfigError, match="it weighs 3 blocks, and the backbone has 2"):
        measure_latency(series, required=True)
    measure_latency(series, required=False)
    assert not series.folder.exists()


def _succeed(command: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code == 0


def test_a_cell_is_named_by_what_it_is(series: Series) -> None:
    todo, _ = cells(chosen(["table 4"]), series)
    assert isinstance(todo[0], Cell)
    assert todo[0].name == "simcse last1 seed 1"
    assert todo[0].file == series.folder / "simcse" / "last1.seed1.json"
