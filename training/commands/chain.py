"""The command ``s2sent-train chain``: a chain of recipes with several seeds."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from s2sent.training.commands.options import Data, some_whole_numbers


def chain(
    data: Data,
    output: Annotated[Path, typer.Option(help="Folder for checkpoints, results and tables.")],
    recipes: Annotated[
        list[Path] | None,
        typer.Argument(help="Recipes in their order; X-NAME.toml leaves runs/NAME for later ones."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of every recipe.")] = "1,2,3,4,5",
    tests: Annotated[
        bool, typer.Option("--tests", help="At the end of all: score the seven STS tests, once.")
    ] = False,
    only_tables: Annotated[bool, typer.Option("--only-tables", help="Only build tables.")] = False,
) -> None:
    """Run a chain of recipes with each seed, the last also without its selector; make tables.

    The seed is every recipe's, so that the spread is that of the whole chain. No test task is
    scored without --tests. What has its checkpoint or its result is skipped: give the same command
    again after an interruption.
    """
    from s2sent.training.evaluation.results.output import require_writable
    from s2sent.training.experiments.arms.chain import (
        RESULTS_FILE,
        read_chain,
        run_chain,
        write_chain_tables,
    )

    chosen = some_whole_numbers(seeds, "seeds")
    require_writable(output / RESULTS_FILE)
    command = shlex.join(["chain", "--data", str(data), "--output", str(output), "--only-tables"])
    if only_tables:
        typer.echo(write_chain_tables(output / RESULTS_FILE, command))
        return
    if not recipes:
        raise typer.BadParameter("No recipe is named: give the chain's, in their order.")
    found = read_chain(recipes)
    typer.echo(run_chain(found, chosen, data, output.resolve(), tests=tests, command=command))
