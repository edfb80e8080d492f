"""Says how long the runs that a series lacks would take and how much disk, from a run's steps."""

from collections.abc import Sequence
from pathlib import Path

from s2sent.training.experiments.engine import Run
from s2sent.training.fit.rehearsal import free_megabytes, take_first_steps
from s2sent.training.recipe.recipe import Recipe


def plan(runs: Sequence[Run], data: Path) -> str:
    """One line for each objective with missing runs: the first steps of one of them are trained.

    Raises what training raises before its first step.
    """
    missing: dict[Path, list[Recipe]] = {}
    for run in runs:
        if not run.has_line:
            missing.setdefault(run.file, []).extend(run.recipes.values())
    return "\n".join(_objective(file, recipes, data) for file, recipes in missing.items())


def _objective(file: Path, recipes: Sequence[Recipe], data: Path) -> str:
    """A run with a selector stands for all."""
    recipe = next((each for each in recipes if each.selector is not None), recipes[0])
    found = take_first_steps(recipe, data, file.stem)
    hours = len(recipes) * found.seconds / 3600
    disk = (found.checkpoint + found.unfinished) / 1e6
    return (
        f"{file.stem}: {len(recipes)} runs are missing, of {found.steps:,} steps of"
        f" {recipe.training.batch_size} rows each. One after another they take about"
        f" {hours:,.1f} h ({found.seconds / 60:,.1f} min a run: {found.pace}), and the scores on"
        f" the tests beside that. Each process needs up to {disk:,.0f} MB of disk at a time;"
        f" {free_megabytes(file)} MB are free."
    )
