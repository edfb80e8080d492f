"""Stands for the trainer in tests of experiments: nothing is trained, but all is there."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from s2sent.training.errors import Interrupted
from s2sent.training.experiments import engine
from s2sent.training.experiments.engine import Series, Study
from s2sent.training.experiments.reproduce import run_study
from s2sent.training.files.record import write_record
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.recipe.recipe import Recipe


class Untrained:
    """Leaves the encoder that a recipe starts from, with its record, as if it had been trained.

    Its call number ``interrupt_at`` is interrupted, and a signal ``stopped`` each in its last step.
    """

    def __init__(self, interrupt_at: int = 0, stopped: signal.Signals | None = None) -> None:
        self.recipes: list[Recipe] = []
        self.folders: list[Path] = []
        self.interrupt_at, self.stopped = interrupt_at, stopped

    def __call__(self, recipe: Recipe, data: Path, output: Path, **options: Any) -> "Untrained":
        self.recipes.append(recipe)
        self.folders.append(output)
        if len(self.recipes) == self.interrupt_at:
            raise Interrupted("stop")
        torch.manual_seed(recipe.seed)
        plain = replace(recipe, training=replace(recipe.training, lora_rank=0))
        new_encoder(plain).save(str(output), create_model_card=False)
        write_record(output, {"recipe": recipe.as_table(), "dev": {"step": 0}})
        return self

    @property
    def names(self) -> list[str]:
        """The names of the folders, in the order of the calls."""
        return [folder.name for folder in self.folders]


def run_with(train: Any, study: Study, series: Series) -> Path:
    """Run a study with a stand-in for the trainer; returns the path of its tables."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "train", train)
        return run_study(study, series)
