"""The command ``s2sent-train chain``: a chain of recipes with several seeds."""

from pathlib import Path
from typing import Annotated

import typer

from s2sent.training.commands.options import Data, some_whole_numbers


def chain(
    recipes: Annotated[
        list[Path],
        typer.Argument(help="Recipes in their order; X-NAME.toml leaves runs/NAME for later ones."),
    ],
    data: Data,
    output: Annotated[Path, typer.Option(help="Folder for checkpoints, results and tables.")],
    seeds: Annotated[str, typer.Option(help="Seeds of every recipe.")] = "1,2,3,4,5",
    tests: Annotated[
        bool, typer.Option("--tests", help="At the end of all: score the seven STS tests, once.")
    ] = False,
) -> None:
    """Run a chain of recipes with each seed, the last also without its selector; make tables.

    The seed is every recipe's, so that the spread is that of the whole chain. No test task is
    scored without --tests. What has its checkpoint or its result is skipped: give the same command
    again after an interruption.
    """
    from s2sent.training.evaluation.results.output import require_writable
    from s2sent.training.experiments.chain.experiment import RESULTS_FILE, ChainSeries, run_chain
    from s2sent.training.experiments.chain.plan import read_chain

    chosen = some_whole_numbers(seeds, "seeds")
    require_writable(output / RESULTS_FILE)
    typer.echo(run_chain(ChainSeries(read_chain(recipes), chosen, data, output.resolve(), tests)))
