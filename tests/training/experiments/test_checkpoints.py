"""A checkpoint is trained unless it is there or another process has it; kept ones say they opened
the tests."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.errors import ConfigError
from training.evaluation.results.openings import OPENINGS_FILE
from training.experiments.checkpoints import ensure_checkpoint, leave_scored, run_missing
from training.experiments.locks import claimed, lock_of
from training.jsonl import read_lines
from training.recipe.recipe import Recipe
from training.record import write_record


def test_a_checkpoint_of_another_recipe_is_not_taken(recipe: Recipe, tmp_path: Path) -> None:
    trained: list[Recipe] = []

    def train(recipe: Recipe, data: Path, output: Path, **_: Any) -> Any:
        trained.append(recipe)
        output.mkdir()
        write_record(output, {"recipe": recipe.as_table()})
        return SimpleNamespace(stopped=False, seconds=2.0)

    folder = tmp_path / "run"
    assert ensure_checkpoint(folder, recipe, tmp_path, train) == 2.0
    assert ensure_checkpoint(folder, recipe, tmp_path, train) is None
    with pytest.raises(ConfigError, match="run is of another recipe: move it away"):
        ensure_checkpoint(folder, replace(recipe, seed=9), tmp_path, train)
    assert trained == [recipe]


def test_a_run_is_added_once_unless_another_process_has_it(tmp_path: Path) -> None:
    file, checkpoint = tmp_path / "runs.jsonl", tmp_path / "new" / "a.checkpoint"
    runs: list[int] = []

    def run() -> dict[str, Any]:
        runs.append(len(runs))
        return {"arm": "a", "score": 1}

    with claimed(lock_of(checkpoint)):
        run_missing(file, {"arm": "a"}, checkpoint, run)
    assert not file.exists()
    for _ in range(2):
        run_missing(file, {"arm": "a"}, checkpoint, run)
    assert read_lines(file) == [{"arm": "a", "score": 1}]
    assert runs == [0]
    assert not lock_of(checkpoint).exists()


@pytest.mark.parametrize("keep", [True, False])
def test_a_checkpoint_that_is_kept_says_that_its_tests_were_opened(
    tmp_path: Path, keep: bool
) -> None:
    checkpoint = tmp_path / "a.checkpoint"
    checkpoint.mkdir()
    write_record(checkpoint, {"recipe": {"seed": 1}})
    leave_scored(checkpoint, keep=keep)
    assert checkpoint.exists() == keep
    noted = [line["name"] for line in read_lines(tmp_path / OPENINGS_FILE)]
    assert noted == ([checkpoint.name] if keep else [])
