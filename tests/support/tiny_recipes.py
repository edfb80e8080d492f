"""Short recipes of every objective, for tests that train."""

from dataclasses import replace
from pathlib import Path

from s2sent.training.recipe.objectives import (
    Distillation,
    Objective,
    PairDistillation,
    PromptBERT,
    SimCSE,
    SupervisedSimCSE,
)
from s2sent.training.recipe.recipe import CorpusPart, Recipe, TrainingConfig

QUICK = TrainingConfig(steps=7, batch_size=8, eval_every=2, learning_rate=1e-3)


def with_objective(recipe: Recipe, objective: Objective, source: str = "captions") -> Recipe:
    return replace(recipe, objective=objective, corpus=[CorpusPart(source=source)])


def every_objective(backbone: Path) -> list[Objective]:
    return [
        SimCSE(),
        SimCSE(projection=True),
        SupervisedSimCSE(),
        PromptBERT(),
        Distillation(teachers=[str(backbone)]),
        PairDistillation(teachers=[str(backbone), str(backbone)]),
    ]
