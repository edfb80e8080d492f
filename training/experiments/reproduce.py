"""Runs chosen experiments on a backbone, and says which command builds their tables again."""

import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from s2sent.training.errors import ConfigError
from s2sent.training.experiments.arms.configurations import OBJECTIVES, PAPER
from s2sent.training.experiments.arms.paper_experiments import OTHERS, as_printed, chosen
from s2sent.training.experiments.engine import Series, Study, Train, require_known, run_missing
from s2sent.training.experiments.plan import plan
from s2sent.training.fit.train import train as train_recipe

# The modules of those that are not the paper's, by what is asked for.
STUDIES = dict(zip(OTHERS, ("twins", "decoders", "exits"), strict=True))

log = logging.getLogger(__name__)


def reproduce(asked: Sequence[str], series: Series, *, only_tables: bool = False) -> Iterator[Path]:
    """Run the experiments that are asked for, such as "table 2"; yields each page of tables.

    Raises a `TrainingError` for an unknown one, before anything is run.
    """
    others = [name for name in OTHERS if name in asked]
    keys = [name for name in asked if name not in others]
    if series.budget == PAPER:
        if others:
            raise ConfigError(f"--paper runs what the paper has: leave {others[0]} out.")
        as_printed(keys)
    chosen(keys)
    require_known(series.objectives, [*OBJECTIVES], "objective")
    for own in [*([name] for name in others), *([keys] if keys or not others else [])]:
        of_one = replace(
            series,
            keys=tuple(own),
            command=_command(own, series),
            output=series.output.resolve(),
        )
        yield run_study(_study_of(own), of_one, only_tables=only_tables)


def run_study(
    study: Study, series: Series, *, only_tables: bool = False, train: Train = train_recipe
) -> Path:
    """Run what is missing of a series, unless ``only_tables``; returns the path of its tables.

    Raises a `TrainingError` for what cannot be run, and `Interrupted` when a signal ended a run.
    """
    if not only_tables:
        from s2sent.training.experiments.score import read_tests  # imports torch

        runs = study.runs_of(series)
        read_tests(series.data, series.test_pairs)  # so that no run ends at what gives no score
        study.first(series)
        cache = series.folder / study.cache if study.cache else None
        if series.budget == PAPER and (told := plan(runs, series.data)):
            log.info(told)
        run_missing(runs, series.data, cache=cache, train=train)
    return study.write_tables(series)


def _study_of(keys: Sequence[str]) -> Study:
    """Imported when it is asked for: each imports torch, which takes seconds."""
    name = next((STUDIES[key] for key in keys if key in STUDIES), "paper")
    found: Study = import_module(f"s2sent.training.experiments.arms.{name}").STUDY
    return found


def _command(keys: Sequence[str], series: Series) -> str:
    """The command that builds the tables again."""
    names = ["--paper"] if series.budget == PAPER else []
    names += [part for key in keys for part in f"--{key}".split()]
    objectives = [("--objective", name) for name in series.objectives if name != "simcse"]
    options = [*names, *(part for pair in objectives for part in pair)]
    options += ["--backbone", series.backbone, "--data", str(series.data)]
    return shlex.join(["reproduce", *options, "--output", str(series.output), "--only-tables"])
