"""A checkpoint is trained unless it is there, and taken only where its recipe is the run's."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from training.errors import ConfigError
from training.experiments.checkpoints import ensure_checkpoint
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
