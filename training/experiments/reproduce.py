"""Runs chosen experiments on a backbone, and says which command builds their tables again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from s2sent.training.experiments.arms.configurations import OBJECTIVES
from s2sent.training.experiments.arms.paper_experiments import chosen
from s2sent.training.experiments.engine import Series, require_known

TWINS, DECODERS, EXITS = "table jtcse", "table sfp", "control x4"


@dataclass(frozen=True)
class Heads:
    """What only the experiments on heads can choose."""

    depths: tuple[int, ...] = ()  # of X4: numbers of blocks; all from 2 where none is named
    arms: tuple[str, ...] = ()  # of X4 and sfp; all where none is named
    test_pairs: int = 0  # of sfp, of each test; 0 is all


def reproduce(
    asked: Sequence[str],
    series: Series,
    heads: Heads,
    *,
    only_tables: bool = False,
) -> Iterator[Path]:
    """Run the experiments that are asked for, such as "table 2"; yields each page of tables.

    Raises a `TrainingError` for an unknown one, before anything is run.
    """
    others = [name for name in (TWINS, DECODERS, EXITS) if name in asked]
    keys = [name for name in asked if name not in others]
    chosen(keys)
    require_known(series.objectives, [*OBJECTIVES], "objective")
    for name in others:
        of_one = replace(series, command=_command([name], series), output=series.output.resolve())
        yield _run_other(name, of_one, heads, only_tables=only_tables)
    if keys or not others:
        from s2sent.training.experiments.arms.paper import reproduce_paper  # imports torch

        command = _command(keys, series)
        of_paper = replace(series, command=command, output=series.output.resolve())
        yield reproduce_paper(keys, of_paper, only_tables=only_tables)


def _run_other(name: str, series: Series, heads: Heads, *, only_tables: bool) -> Path:
    """Each imports torch, which takes seconds."""
    if name == TWINS:
        from s2sent.training.experiments.arms.twins import reproduce_twins

        return reproduce_twins(series, only_tables=only_tables)
    if name == DECODERS:
        from s2sent.training.experiments.arms.decoders import reproduce_decoders

        return reproduce_decoders(
            series, test_pairs=heads.test_pairs, arms=heads.arms, only_tables=only_tables
        )
    from s2sent.training.experiments.arms.exits import reproduce_exits

    return reproduce_exits(series, heads.depths, arms=heads.arms, only_tables=only_tables)


def _command(keys: Sequence[str], series: Series) -> str:
    """The command that builds the tables again."""
    options = [f"--{key}" for key in keys]
    options += [f"--objective {name}" for name in series.objectives if name != "simcse"]
    options += [f"--backbone {series.backbone}", f"--data {series.data}"]
    return f"reproduce {' '.join(options)} --output {series.output} --only-tables"
