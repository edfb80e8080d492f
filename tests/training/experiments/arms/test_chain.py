"""A chain of recipes: every seed is every recipe's, and each goes on from what it names."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from s2sent.training.__main__ import main
from s2sent.training.encoder import new_encoder
from s2sent.training.errors import ConfigError, Interrupted
from s2sent.training.experiments.arms.chain import (
    WITH,
    WITHOUT,
    Chain,
    read_chain,
    run_chain,
    write_chain_tables,
)
from s2sent.training.files.jsonl import append_line, read_lines
from s2sent.training.recipe.objectives import Distillation
from s2sent.training.recipe.recipe import Recipe
from tests.support.tiny import tiny_backbone
from tests.support.tiny_data import tiny_data
from tests.support.tiny_tasks import tiny_tasks, write_dev_apart
from tests.support.untrained import Untrained

FIRST = """
seed = 1
[backbone]
name = "{backbone}"
[[corpus]]
source = "wikisplit"
[objective]
name = "simcse"
"""
PROJECTED = """
[elastic]
depths = [2]
dimensions = []
project = true
"""
SECOND = """
seed = 1
[backbone]
name = "runs/contrast"
[selector]
reduction = 4
[[corpus]]
source = "captions"
[objective]
name = "distillation"
teachers = ["runs/contrast", "{backbone}"]
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dev_apart(tiny_data(tiny_tasks(tmp_path_factory.mktemp("chain"))))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("recipes")
    backbone = tiny_backbone(folder / "tiny")
    contents = {"a-1-contrast.toml": FIRST, "a.toml": SECOND}
    for name, content in contents.items():
        (folder / name).write_text(content.format(backbone=backbone), encoding="utf-8")
    return [folder / name for name in contents]


@pytest.fixture(scope="module")
def chain(files: list[Path]) -> Chain:
    return read_chain(files)


@pytest.fixture(scope="module")
def series(
    chain: Chain, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Untrained]:
    """A series that has run to its end, and what was trained."""
    output, train = tmp_path_factory.mktemp("out"), Untrained()
    run_chain(chain, (1, 2), data, output, tests=True, train=train)
    return output, train


def test_each_seed_is_every_recipes(series: tuple[Path, Untrained]) -> None:
    """The first recipe is run once a seed, the last with and without its selector."""
    output, train = series
    assert [recipe.seed for recipe in train.recipes] == [1, 1, 1, 2, 2, 2]
    assert [recipe.selector is not None for recipe in train.recipes] == [False, True, False] * 2
    names = ["contrast", "a", "a-without-selector"]
    assert train.folders == [output / f"seed{seed}" / name for seed in (1, 2) for name in names]


def test_a_recipe_goes_on_from_its_own_seeds_checkpoint(
    series: tuple[Path, Untrained],
) -> None:
    """In its backbone and its teachers; what is no run of the chain stays as it is."""
    last = series[1].recipes[-1]
    contrast = str(series[0] / "seed2" / "contrast")
    assert last.backbone.name == contrast
    assert isinstance(last.objective, Distillation)
    assert list(last.objective.teachers)[0] == contrast
    assert list(last.objective.teachers)[1].endswith("tiny")


def test_all_is_scored_on_development_data_before_the_tests_are_opened(
    series: tuple[Path, Untrained],
) -> None:
    lines = read_lines(series[0] / "chain.jsonl")
    assert [(line["part"], line["seed"], line["arm"]) for line in lines] == [
        (part, seed, arm)
        for part in ("development", "tests")
        for seed in (1, 2)
        for arm in (WITH, WITHOUT)
    ]
    moved = [line["weight_moved"] for line in lines[:4]]
    assert moved == [pytest.approx(0, abs=1e-3), None] * 2  # gates start at random, near a mean


def test_what_is_there_is_not_run_again(
    series: tuple[Path, Untrained], chain: Chain, data: Path
) -> None:
    output = series[0]
    before = (output / "chain.jsonl").read_text(encoding="utf-8")
    train = Untrained()
    run_chain(chain, (1, 2), data, output, tests=True, train=train)
    assert train.recipes == []
    assert (output / "chain.jsonl").read_text(encoding="utf-8") == before


def test_a_signal_ends_the_series(chain: Chain, data: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="give the same command again"):
        run_chain(chain, (1,), data, tmp_path, train=Untrained(stopped=signal.SIGINT))
    assert read_lines(tmp_path / "chain.jsonl") == []


def test_results_of_other_recipes_are_not_mixed(
    series: tuple[Path, Untrained], files: list[Path], data: Path
) -> None:
    shorter = read_chain(files[:1])
    with pytest.raises(ConfigError, match="has results of other recipes: choose another --output"):
        run_chain(shorter, (1,), data, series[0], train=Untrained())


def test_a_recipe_whose_start_is_not_in_the_chain_is_refused(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match="begins from runs/contrast, which no recipe before it"):
        read_chain(files[1:])
    with pytest.raises(ConfigError, match="a second time: rename it"):
        read_chain([files[0], files[0]])


def test_a_last_recipe_that_needs_its_selector_is_refused_before_any_training(
    files: list[Path], data: Path, tmp_path: Path
) -> None:
    """The matrices of [elastic] project are part of a selector."""
    projected = tmp_path / files[1].name
    projected.write_text(files[1].read_text() + PROJECTED)
    train = Untrained()
    with pytest.raises(ConfigError, match="a, is also run without its selector, and cannot be"):
        run_chain(read_chain([files[0], projected]), (1,), data, tmp_path, train=train)
    assert train.recipes == []


def test_a_seed_outside_its_range_is_refused_by_name(chain: Chain, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contrast: seed = -1 is outside 0 to 4294967295"):
        chain.with_seed(-1, chain.arms[0], tmp_path)


def test_the_start_that_weights_changed_from_is_the_seeds(
    chain: Chain, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seeds: list[int] = []
    known = new_encoder

    def start(recipe: Recipe) -> Any:
        seeds.append(torch.initial_seed())
        return known(recipe)

    monkeypatch.setattr("s2sent.training.experiments.score.new_encoder", start)
    run_chain(chain, (7,), data, tmp_path, train=Untrained())
    assert seeds == [7]


@pytest.mark.parametrize(
    ("seeds", "message"),
    [("1,1", "'1,1' names 1 twice"), ("", "The list of seeds is empty: give one at least")],
)
def test_seeds_are_one_at_least_and_each_once(
    files: list[Path],
    tmp_path: Path,
    seeds: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    options = ["--data", str(tmp_path), "--output", str(tmp_path), "--seeds", seeds]
    with pytest.raises(SystemExit, match="2"):
        main(["chain", *map(str, files), *options])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("kept_steps", [[5], [5, 0]])
def test_the_selector_is_tested_by_seeds_unless_both_arms_kept_step_0(
    tmp_path: Path, kept_steps: list[int]
) -> None:
    """The last recipe's step 0: the others trained what both arms have."""
    file = tmp_path / "chain.jsonl"
    for seed, (ours, theirs) in enumerate([(80.1, 80.0), (80.0, 80.0), (80.2, 80.1)], start=1):
        for arm, score, change in ((WITH, ours, 0.001), (WITHOUT, theirs, None)):
            scores = {"STS-B dev": 1.0, "STS-B dev without STS12-16": score}
            head = {"chain_sha256": "x", "part": "development", "seed": seed, "arm": arm}
            kept = {"kept_steps": kept_steps, "weight_moved": change}
            append_line(file, {**head, "scores": scores, **kept})
    text = write_chain_tables(file, "chain again").read_text(encoding="utf-8")
    assert "Made by `s2sent-train chain again`." in text
    assert "| with the selector | mean of 3 |  | 1.00 ± 0.00 | 80.10 ± 0.10 |" in text
    (row,) = re.findall(r"^\| without the selector \| 3 \| \+0.07 \|.*$", text, re.MULTILINE)
    assert ("initial weights, not tested" in row) == (kept_steps[-1] == 0)
    assert "Fusion weights changed by 0.001 at most by the kept step." in text
