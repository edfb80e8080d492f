"""The twin experiment: every arm of every cell has its lines; what is there is not run again."""

import json
from pathlib import Path
from typing import Any

import pytest

from s2sent.model.network.twins import is_twin_checkpoint
from s2sent.training.errors import ConfigError, EncoderError
from s2sent.training.experiments.arms.twins import ARMS, STUDY, runs_of
from s2sent.training.experiments.engine import Series
from s2sent.training.experiments.reproduce import run_study
from s2sent.training.files.jsonl import read_lines
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.join import join_checkpoints
from s2sent.training.recipe.objectives import JTCSE, PairDistillation, SimCSE, SupervisedSimCSE
from s2sent.training.recipe.recipe import Recipe
from tests.support.tiny import tiny_backbone
from tests.support.tiny_data import SENTENCES, tiny_data, write_table
from tests.support.tiny_tasks import tiny_tasks, write_dev_apart
from tests.support.untrained import Untrained, run_with


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_dev_apart(tiny_data(tiny_tasks(tmp_path_factory.mktemp("twins"))))
    rows = [("1", a, b) for a, b in zip(SENTENCES[:20], SENTENCES[20:40], strict=True)]
    header = ("label", "sentence1", "sentence2")
    write_table(folder / "corpus" / "pan-paraphrase.tsv.gz", [header, *rows])
    return folder


@pytest.fixture(scope="module")
def series(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Series:
    folder = tmp_path_factory.mktemp("series")
    backbone = tiny_backbone(folder / "tiny")
    return Series(data, folder / "out", str(backbone), budget="smoke", seeds=(1,))


@pytest.fixture(scope="module")
def trained(series: Series) -> Untrained:
    """The recipes of a series that has run to its end."""
    train = Untrained()
    run_with(train, STUDY, series)
    return train


def recipes_of(series: Series, *, selector: bool = False) -> dict[str, Recipe]:
    """The recipes of the checkpoints of the first seed, by name, as they are trained."""
    runs = [run for run in runs_of(series) if run.key["selector"] == selector]
    return {
        folder.stem: recipe for run in runs[: len(ARMS)] for folder, recipe in run.recipes.items()
    }


def lines_of(series: Series) -> list[dict[str, Any]]:
    return read_lines(series.folder / "jtcse.jsonl")


def test_every_arm_has_its_line(series: Series, trained: Untrained) -> None:
    found = [(line["selector"], line["arm"]) for line in lines_of(series)]
    assert found == [(selector, arm) for selector in (False, True) for arm in ARMS]
    assert all({"development", "scores"} < line.keys() for line in lines_of(series))
    assert not any("/" in json.dumps(line["plan"]) for line in lines_of(series))


def test_every_run_begins_where_the_plan_says(series: Series, trained: Untrained) -> None:
    """The towers differ in their seed, and the others go on from them for as long as they ran."""
    runs = recipes_of(series)
    cell = runs_of(series)[0].folder
    assert [recipe.objective.name for recipe in trained.recipes[: len(runs)]] == [
        *["simcse"] * 2,
        *["supervised"] * 2,
        *["jtcse"] * 2,
        "pair_distillation",
    ]
    towers = runs["tower_a"], runs["tower_b"]
    assert len({tower.seed for tower in towers}) == 2
    assert all(isinstance(tower.objective, SimCSE) for tower in towers)
    assert isinstance(runs["simcse_b"].objective, SupervisedSimCSE)
    assert runs["simcse_b"].backbone.name == f"{cell}/tower_b.checkpoint"
    for run in ("tncse", "jtcse"):
        objective = runs[run].objective
        assert isinstance(objective, JTCSE)
        assert objective.cross_attention == (run == "jtcse")
        assert objective.second_tower == f"{cell}/tower_b.checkpoint"
    distilled = runs["distilled"].objective
    assert isinstance(distilled, PairDistillation)
    assert distilled.teachers == [f"{cell}/jtcse.checkpoint"]
    assert len({run.training for run in runs.values()}) == 1
    with_selectors = recipes_of(series, selector=True)
    assert [run.selector is not None for run in with_selectors.values()] == [
        *[True] * 4,
        *[False] * 2,
        True,
    ]


def test_a_series_goes_on_where_it_was_left(series: Series, trained: Untrained) -> None:
    """A line that is there is not run again; one that is missing is, on checkpoints made anew."""
    again = Untrained()
    run_with(again, STUDY, series)
    assert again.recipes == []
    file = series.folder / "jtcse.jsonl"
    kept = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(kept[:-1]), encoding="utf-8")
    run_with(again, STUDY, series)
    names = [recipe.objective.name for recipe in again.recipes]
    assert names == ["simcse", "simcse", "jtcse", "pair_distillation"]
    assert [line["arm"] for line in lines_of(series)][-1] == "distilled"
    assert not runs_of(series)[0].folder.exists()


def test_untrained_arms_are_shown_as_not_tested(series: Series, trained: Untrained) -> None:
    table = (series.folder / "jtcse.md").read_text(encoding="utf-8")
    assert table.count("| two SimCSE towers, summed |") == 4
    assert table.count("| initial weights, not tested |") == 16
    assert "not run" not in table.lower()


def test_plans_have_tables_of_their_own(series: Series, trained: Untrained) -> None:
    file = series.folder / "jtcse.jsonl"
    kept = file.read_text(encoding="utf-8")
    line = json.loads(kept.splitlines()[0])
    line["plan"]["steps"] += 1
    file.write_text(kept + json.dumps(line) + "\n", encoding="utf-8")
    table = run_study(STUDY, series, only_tables=True).read_text(encoding="utf-8")
    assert [table.count(f"{steps} steps of 8 pairs") for steps in (2, 3)] == [1, 1]
    assert table.count("| two SimCSE towers, summed |") == 4
    file.unlink()
    with pytest.raises(ConfigError, match="has no results"):
        run_study(STUDY, series, only_tables=True)
    file.write_text(kept, encoding="utf-8")


def test_two_checkpoints_are_joined_with_their_records(series: Series, tmp_path: Path) -> None:
    recipe = recipes_of(series)["tower_a"]
    for name in ("one", "two"):
        new_encoder(recipe).save(str(tmp_path / name), create_model_card=False)
        (tmp_path / name / "training.json").write_text(json.dumps({"seed": name}))
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    join_checkpoints(one, two, tmp_path / "out")
    assert is_twin_checkpoint(tmp_path / "out")
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert (record["began_from"]["seed"], record["second_tower"]["seed"]) == ("one", "two")
    with pytest.raises(ConfigError, match="exists already"):
        join_checkpoints(one, two, tmp_path / "out")
    with pytest.raises(EncoderError, match=r"cannot be joined: The folder .*none does not exist"):
        join_checkpoints(one, str(tmp_path / "none"), tmp_path / "new")
