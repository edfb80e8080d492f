"""Runs chosen experiments on a backbone, and says which command builds their tables again."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from s2sent.training.errors import ConfigError
from s2sent.training.experiments.arms.configurations import OBJECTIVES, PAPER
from s2sent.training.experiments.arms.paper_experiments import OTHERS, as_printed, chosen
from s2sent.training.experiments.engine import Series, require_known


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
        yield _run(of_one, only_tables=only_tables)


def _run(series: Series, *, only_tables: bool) -> Path:
    """Each experiment imports torch, which takes seconds."""
    if series.keys == ("table jtcse",):
        from s2sent.training.experiments.arms.twins import reproduce_twins as run
    elif series.keys == ("table sfp",):
        from s2sent.training.experiments.arms.decoders import reproduce_decoders as run
    elif series.keys == ("control x4",):
        from s2sent.training.experiments.arms.exits import reproduce_exits as run
    else:
        from s2sent.training.experiments.arms.paper import reproduce_paper as run
    return run(series, only_tables=only_tables)


def _command(keys: Sequence[str], series: Series) -> str:
    """The command that builds the tables again."""
    names = ["--paper"] if series.budget == PAPER else []
    names += [part for key in keys for part in f"--{key}".split()]
    objectives = [("--objective", name) for name in series.objectives if name != "simcse"]
    options = [*names, *(part for pair in objectives for part in pair)]
    options += ["--backbone", series.backbone, "--data", str(series.data)]
    return shlex.join(["reproduce", *options, "--output", str(series.output), "--only-tables"])
