"""Running the paper's experiments: what has a result is skipped, what does not fit is refused."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from s2sent.training.__main__ import main
from s2sent.training.corpus import read_corpus
from s2sent.training.errors import ConfigError, Interrupted
from s2sent.training.evaluation import transfer
from s2sent.training.evaluation.sts import TASKS
from s2sent.training.experiments import engine
from s2sent.training.experiments.arms import paper
from s2sent.training.experiments.arms.configurations import chosen
from s2sent.training.experiments.arms.paper import cells_of, runs_of
from s2sent.training.experiments.engine import Series, run_missing
from s2sent.training.files.jsonl import append_line, read_lines
from s2sent.training.files.record import source_sha256, write_json
from s2sent.training.recipe.recipe import CorpusPart, Recipe
from tests.support.tiny import tiny_backbone
from tests.support.tiny_data import SENTENCES, tiny_data
from tests.support.tiny_tasks import tiny_tasks


class StandIn:
    """Stands for the trainer: writes the record of a run that it counts."""

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.resumed: list[bool] = []
        self.corpus = ""
        self.interrupt = False

    def train(
        self, recipe: Recipe, data: Path, output: Path, *, cache: Path | None, resume: bool
    ) -> Any:
        if self.interrupt:
            output.with_name(output.name + ".partial").mkdir(parents=True)
            raise Interrupted("Interrupted at step 1.")
        self.trained.append(output.stem)
        self.resumed.append(resume)
        dev = {"score": 80.0, "step": 2, "curve": [[0, 79.0], [2, 80.0]]}
        record = {"recipe": recipe.as_table(), "corpus": {"sha256": self.corpus}, "dev": dev}
        write_json(output / "training.json", record)
        return SimpleNamespace(stopped=None)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backbone") / "tiny"
    return tiny_backbone(folder, width=64, num_layers=6)


@pytest.fixture
def series(tmp_path: Path, backbone: Path) -> Series:
    data = tiny_data(tmp_path / "data")
    return Series(data=data, output=tmp_path / "out", backbone=str(backbone), budget="smoke")


def go(keys: Sequence[str], series: Series, stand_in: StandIn) -> None:
    runs = runs_of(replace(series, keys=tuple(keys)))
    recipe = next(iter(runs[0].recipes.values()))
    stand_in.corpus = read_corpus(series.data / "corpus", recipe.corpus, kind="texts").sha256
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(paper, "load_checkpoint", lambda folder: folder)
        patched.setattr(paper, "torch_encode", lambda _: None)
        patched.setattr(paper, "score", lambda *_: {"STS-B": 79.0})
        patched.setattr(transfer, "score_transfer", lambda *_: {"MR": 80.0})
        patched.setattr(engine, "train", stand_in.train)
        run_missing(runs, series.data)


def test_a_run_that_has_its_result_is_skipped_and_its_checkpoint_is_gone(series: Series) -> None:
    stand_in = StandIn()
    go(["table 3"], series, stand_in)
    cells = ["cls-last1-mlp", "last1", "cls-last1", "cls-last3-2d-mlp", "last3-2d", "cls-last3-2d"]
    names = [f"{cell}.seed1" for cell in cells]
    assert stand_in.trained == names
    go(["control x1", "table 3"], series, stand_in)
    more = ["last3-avg.seed1", "last3-2d-static-blocks.seed1", "last3-2d-static-features.seed1"]
    assert stand_in.trained == names + more
    assert not list((series.folder / "simcse").iterdir())
    lines = read_lines(series.folder / "simcse.jsonl")
    assert [f"{line['configuration']}.seed{line['seed']}" for line in lines] == names + more


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
    parts = [CorpusPart(source="wikisplit", limit=200)]
    corpus = read_corpus(series.data / "corpus", parts, kind="texts")
    stand_in.corpus = corpus.sha256
    for run in runs_of(replace(series, keys=("table 4",))):
        for folder, recipe in run.recipes.items():
            stand_in.train(recipe, series.data, folder, cache=None, resume=False)
    go(["table 4"], series, stand_in)
    assert len(stand_in.trained) == 2
    assert not list(series.folder.rglob("*.checkpoint"))
    assert len(read_lines(series.folder / "simcse.jsonl")) == 2


def test_a_result_without_transfer_is_run_again_for_table_4(series: Series) -> None:
    stand_in = StandIn()
    go(["table 3"], series, stand_in)
    go(["table 4"], series, stand_in)
    assert stand_in.trained[6:] == ["last1.seed1", "last3-2d.seed1"]
    go(["table 3", "table 4"], series, stand_in)
    assert len(stand_in.trained) == 8


def test_a_result_of_another_recipe_is_refused_before_anything_runs(series: Series) -> None:
    stand_in = StandIn()
    go(["table 4"], series, stand_in)
    with pytest.raises(ConfigError) as refused:
        go(["table 3"], replace(series, steps=9), stand_in)
    message = str(refused.value)
    assert "simcse.jsonl holds simcse last1 seed 1 with other settings than it has now" in message
    assert "training.steps = 4 against 9" in message
    assert len(stand_in.trained) == 2


def test_a_result_of_another_corpus_is_refused(series: Series) -> None:
    stand_in = StandIn()
    go(["table 4"], series, stand_in)
    file = series.folder / "simcse.jsonl"
    lines = read_lines(file)
    file.unlink()
    for line in lines:
        append_line(file, {**line, "corpus_sha256": "0" * 64})
    with pytest.raises(ConfigError, match=r"corpus_sha256 = 0{64} against"):
        go(["table 4"], series, stand_in)


def test_a_file_that_is_no_result_is_refused(series: Series) -> None:
    file = series.folder / "simcse.jsonl"
    file.parent.mkdir(parents=True)
    for content in ('{"half":', '{"seed": 1}', "[]"):
        file.write_text(content)
        with pytest.raises(ConfigError, match=r"simcse.jsonl, line 1 is no result of a run"):
            go(["table 4"], series, StandIn())


def test_what_does_not_fit_the_backbone_is_left_out_with_a_reason(series: Series) -> None:
    few = tiny_backbone(series.output / "few", num_layers=4)
    todo, left_out = cells_of(chosen(["table 2"]), replace(series, backbone=str(few)))
    assert len(todo) == 7
    assert left_out["last6-2d"] == "it weighs 6 blocks, and the backbone has 4"
    _, left_out = cells_of(chosen(["table 3", "table 4"]), replace(series, objectives=("prompt",)))
    assert left_out == {"table 3 with prompt": "the paper has no such rows"}
    with pytest.raises(ConfigError, match="Nothing is left to run"):
        runs_of(replace(series, keys=("table 3",), objectives=("prompt",)))


@pytest.mark.usefixtures("few_folds")
def test_from_the_command_to_the_tables_on_a_tiny_backbone(tmp_path: Path, backbone: Path) -> None:
    data = tiny_tasks(tiny_data(tmp_path / "data"))
    options = ["--data", str(data), "--output", str(tmp_path / "out"), "--backbone", str(backbone)]
    command = ["reproduce", *options, "--budget", "smoke", "--steps", "2", "--table", "4"]
    _succeed(command)
    folder = tmp_path / "out" / backbone.name
    content = read_lines(folder / "simcse.jsonl")[-1]
    assert content["configuration"] == "last3-2d"
    assert set(content["scores"]) == {*TASKS, "average"}
    assert content["scores"]["average"] == pytest.approx(fmean(content["scores"][t] for t in TASKS))
    assert content["step"] == 2
    assert content["source_sha256"] == source_sha256()
    assert "dirty" in content
    assert set(content["transfer"]) >= {"MR", "MRPC", "average"}
    assert "| Last3 2D | 1 |" in (folder / "tables.md").read_text()

    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.json*")}
    _succeed(command)
    _succeed([*command, "--only-tables"])
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.json*")} == before


@pytest.mark.parametrize("missing", ["sts/sts14.tsv", "transfer/mr.tsv"])
@pytest.mark.parametrize("asked", [["--paper"], ["--table", "4"]])
def test_a_file_of_the_tests_that_is_missing_is_told_before_anything_is_trained(
    series: Series, missing: str, asked: list[str], refusal: Callable[..., str]
) -> None:
    data = tiny_tasks(series.data)
    (data / missing).unlink()
    options = ["--data", data, "--output", series.output, "--backbone", series.backbone]
    said = refusal("reproduce", *asked, "--corpus", "wikisplit", *options)
    assert f"{missing} is not a file" in said
    assert not series.output.exists()


@pytest.mark.usefixtures("few_folds")
def test_the_papers_settings_are_one_word_and_what_they_take_is_told_first(
    tmp_path: Path, backbone: Path, caplog: pytest.LogCaptureFixture, refusal: Callable[..., str]
) -> None:
    data = tiny_tasks(tiny_data(tmp_path / "data"))
    (data / "corpus" / "own.txt").write_text("\n".join(SENTENCES[:64]))
    command = ["reproduce", "--paper", "--table", "4", "--seeds", "1", "--corpus", "own.txt"]
    command += ["--data", str(data), "--output", str(tmp_path), "--backbone", str(backbone)]
    with caplog.at_level("INFO", "s2sent.training"):
        _succeed(command)
    told = re.search(
        r"simcse: 4 runs are missing, of 1 steps of 64 rows each\. One after another they take"
        r" about [\d.]+ h \([\d.]+ min a run: .*\), and the scores on the tests beside that\. Each"
        r" process needs up to [\d,]+ MB of disk at a time; [\d,]+ MB are free\.",
        caplog.text,
    )
    assert told
    assert told.start() < caplog.text.index(" training ")
    table = (tmp_path / backbone.name / "tables.md").read_text()
    assert "Made by `s2sent-train reproduce --paper --table 4 " in table
    assert re.search(r"^\| Last1 base \| 1 \|.* / 85.71 \|", table, re.M)
    for preset in ("preset default", ".* .preset paper.", ".* .preset official."):
        assert re.search(rf"^\| Last3 2D, {preset} \| 1 \|.* / 86.27 \|", table, re.M)
    caplog.clear()
    _succeed([*command, "--only-tables"])
    assert "missing" not in caplog.text
    assert "leave --budget out" in refusal(*command, "--budget", "full")
    assert "leave table sfp out" in refusal(*command, "--table", "sfp")


def _succeed(command: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(command)
    assert left.value.code == 0


def test_a_run_is_named_by_what_it_is(series: Series) -> None:
    run = runs_of(replace(series, keys=("table 4",)))[0]
    assert run.name == "simcse last1 seed 1"
    assert run.file == series.folder / "simcse.jsonl"
    assert run.folder == series.folder / "simcse" / "last1.seed1.checkpoint"
