"""Runs chosen experiments on a backbone, and says which command builds their tables again."""

import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from s2sent.training.errors import ConfigError
from s2sent.training.experiments.arms import decoders, exits, paper, twins
from s2sent.training.experiments.arms.configurations import (
    OBJECTIVES,
    OTHERS,
    PAPER,
    as_printed,
    chosen,
)
from s2sent.training.experiments.engine import Run, Series, Study, require_known, run_missing
from s2sent.training.experiments.score import read_tests
from s2sent.training.fit.rehearsal import free_megabytes, take_first_steps
from s2sent.training.recipe.recipe import Recipe

STUDIES = dict(zip(OTHERS, (twins.STUDY, decoders.STUDY, exits.STUDY), strict=True))

log = logging.getLogger(__name__)


def reproduce(asked: Sequence[str], series: Series, *, only_tables: bool = False) -> Iterator[Path]:
    """Run the experiments that are asked for, such as "table 2"; yields each page of tables.

    Raises a `TrainingError` for an unknown one, before anything is run.
    """
    others = [name for name in STUDIES if name in asked]
    keys = [name for name in asked if name not in others]
    if series.budget == PAPER:
        if others:
            raise ConfigError(f"--paper runs what the paper has: leave {others[0]} out.")
        as_printed(keys)
    chosen(keys)
    require_known(series.objectives, [*OBJECTIVES], "objective")
    studies = [(STUDIES[name], [name]) for name in others]
    for study, own in [*studies, *([(paper.STUDY, keys)] if keys or not others else [])]:
        command, output = _command(own, series), series.output.resolve()
        of_one = replace(series, keys=tuple(own), command=command, output=output)
        yield run_study(study, of_one, only_tables=only_tables)


def run_study(study: Study, series: Series, *, only_tables: bool = False) -> Path:
    """Run what is missing of a series, unless ``only_tables``; returns the path of its tables.

    Raises a `TrainingError` for what cannot be run, and `Interrupted` when a signal ended a run.
    """
    if not only_tables:
        runs = study.runs_of(series)
        read_tests(series.data, series.test_pairs)  # so that no run ends at what gives no score
        study.first(series)
        if series.budget == PAPER and (told := plan(runs, series.data)):
            log.info(told)
        run_missing(runs, series.data)
    return study.write_tables(series)


def plan(runs: Sequence[Run], data: Path) -> str:
    """How long the missing runs of each objective take and how much disk, a line each.

    The first steps of one of them are trained. Raises what training raises before its first step.
    """
    missing: dict[Path, list[Recipe]] = {}
    for run in runs:
        if not run.has_line:
            missing.setdefault(run.file, []).extend(run.recipes.values())
    return "\n".join(_plan_of(file, recipes, data) for file, recipes in missing.items())


def _plan_of(file: Path, recipes: Sequence[Recipe], data: Path) -> str:
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


def _command(keys: Sequence[str], series: Series) -> str:
    """The command that builds the tables again."""
    options = ["--paper"] if series.budget == PAPER else []
    options += [part for key in keys for part in f"--{key}".split()]
    for name in series.objectives:
        options += ["--objective", name] if name != "simcse" else []
    options += ["--backbone", series.backbone, "--data", str(series.data)]
    return shlex.join(["reproduce", *options, "--output", str(series.output), "--only-tables"])
