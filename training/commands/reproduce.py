"""The command ``s2sent-train reproduce``: the paper's experiments and our controls."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from s2sent.training.commands.options import Data, whole_numbers

if TYPE_CHECKING:
    from s2sent.training.experiments.paper.cells import Series

TWINS = "jtcse"  # the table of twin encoders, which has runs of its own
DECODERS = "sfp"  # the table of CSE-SFP on decoders, likewise
EXITS = "x4"  # the control of selectors at exits, likewise

Names = list[str] | None
Steps = Annotated[int | None, typer.Option(min=0, help="Of each run; the budget's by default.")]
Budget = Literal["smoke", "short", "full"]


def reproduce(
    data: Data,
    output: Annotated[Path, typer.Option(help="Folder for the results; it can be shared.")],
    backbone: Annotated[str, typer.Option(help="The encoder to train, as in a recipe.")],
    table: Annotated[Names, typer.Option(help="The paper's: 2, 3, 4; or jtcse, sfp.")] = None,
    figure: Annotated[list[int] | None, typer.Option(help="The paper's: 5, 6, 7, 8.")] = None,
    control: Annotated[Names, typer.Option(help="Ours: x1, x2, x4, x6, x7, x8.")] = None,
    latency: Annotated[bool, typer.Option("--latency", help="Also run overhead.")] = False,
    budget: Annotated[Budget, typer.Option(help="How long each run is.")] = "short",
    objective: Annotated[Names, typer.Option(help="simcse, prompt, prompt-mean.")] = None,
    seeds: Annotated[str, typer.Option(help="Such as 1,2,3; the budget's by default.")] = "",
    steps: Steps = None,
    corpus: Annotated[str, typer.Option(help="A source of single texts.")] = "wikisplit",
    keep: Annotated[bool, typer.Option("--keep", help="Keep the checkpoints.")] = False,
    exits: Annotated[str, typer.Option(help="Of x4: numbers of blocks; from 2 by default.")] = "",
    test_pairs: Annotated[int, typer.Option(min=0, help="Of sfp: of each test; 0 is all.")] = 0,
    arm: Annotated[Names, typer.Option(help="Of x4, sfp: heads to train.")] = None,
    only_tables: Annotated[bool, typer.Option("--only-tables", help="Only build tables.")] = False,
) -> None:
    """Run the paper's tables and figures, and build tables and plots of the results.

    Without --table, --figure, --control and --latency it is all of the paper's. --table jtcse is
    twin encoders beside their controls; --table sfp is heads on a frozen decoder, then low-rank
    updates, whose length is --steps (0 leaves them out); with --arm these alone, with that head.
    --control x4 trains exits. Give the same command again after an interruption: it goes on.
    """
    from s2sent.training.evaluation.results.output import require_writable
    from s2sent.training.experiments.paper.cells import Series
    from s2sent.training.experiments.paper.plan.experiments import chosen
    from s2sent.training.experiments.paper.reproduce import reproduce_paper
    from s2sent.training.experiments.paper.tables import TABLES_FILE

    keys = _experiments(table, figure, control)
    chosen(keys)  # an unknown one is refused before the first run
    series = Series(
        data=data,
        output=output.resolve(),
        backbone=backbone,
        budget=budget,
        objectives=tuple(objective or ["simcse"]),
        seeds=tuple(whole_numbers(seeds, "seeds")),
        steps=steps,
        corpus=corpus,
        keep=keep,
    )
    require_writable(series.folder / TABLES_FILE)
    others = _run_others(series, table, control, exits, test_pairs, arm, only_tables=only_tables)
    if keys or latency or not others:
        typer.echo(reproduce_paper(keys, series, latency=latency, only_tables=only_tables))


def _run_others(
    series: "Series",
    table: list[str] | None,
    control: list[str] | None,
    exits: str,
    test_pairs: int,
    arms: list[str] | None,
    *,
    only_tables: bool,
) -> bool:
    """Run the experiments with runs of their own that were asked for; whether there were any."""
    asked = {*(table or []), *(name.lower() for name in control or [])}
    if TWINS in asked:
        from s2sent.training.experiments.twins.experiment import (
            reproduce_twins,  # imports torch, which takes seconds
        )

        typer.echo(reproduce_twins(series, only_tables=only_tables))
    if DECODERS in asked:
        from s2sent.training.experiments.decoders.experiment import reproduce_decoders  # likewise

        tables = reproduce_decoders(
            series, test_pairs=test_pairs, arms=arms or (), only_tables=only_tables
        )
        typer.echo(tables)
    if EXITS in asked:
        from s2sent.training.experiments.exits.experiment import reproduce_exits  # likewise

        depths = whole_numbers(exits, "exits")
        typer.echo(reproduce_exits(series, depths, arms=arms or (), only_tables=only_tables))
    return bool({TWINS, DECODERS, EXITS} & asked)


def _experiments(
    table: list[str] | None, figure: list[int] | None, control: list[str] | None
) -> list[str]:
    """The keys of the paper's experiments that were asked for."""
    keys = [f"table {name}" for name in table or [] if name not in (TWINS, DECODERS)]
    keys += [f"figure {number}" for number in figure or []]
    return keys + [f"control {name.lower()}" for name in control or [] if name.lower() != EXITS]
