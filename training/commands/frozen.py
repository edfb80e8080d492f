"""The command ``s2sent-train frozen``: selectors and controls on a frozen backbone's states."""

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from s2sent.training.commands.options import Data, positive_numbers, some_whole_numbers

Template = Annotated[
    str, typer.Option(help="Read a causal backbone inside it: a preset's name or a text.")
]
Objectives = Annotated[
    list[str] | None, typer.Option(help="distillation, contrastive, sfp; may be repeated.")
]
Retrieval = Annotated[Path | None, typer.Option(help="Queries and documents, development data.")]
OnlyTables = Annotated[bool, typer.Option("--only-tables", help="Only build tables.")]
Tests = Annotated[
    bool, typer.Option("--tests", help="At the end of all: score the seven STS tests, once.")
]
TestPairs = Annotated[int, typer.Option(min=0, help="Of each test, at equal steps; 0 takes all.")]
Rates = Annotated[str, typer.Option(help="Learning rates of every arm, such as 1e-3,1e-2.")]


def frozen(
    data: Data,
    output: Annotated[Path, typer.Option(help="The JSONL file that runs are added to.")],
    backbone: Annotated[str, typer.Option(help="The encoder whose blocks are frozen.")],
    cache: Annotated[Path, typer.Option(help="Folder that keeps block states between runs.")],
    depths: Annotated[str, typer.Option(help="Numbers of blocks, such as 3,6.")],
    retrieval: Retrieval = None,
    template: Template = "",
    arm: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    batch_size: Annotated[int, typer.Option(min=2, help="Pairs.")] = 64,
    seeds: Annotated[str, typer.Option(help="Seeds from 1; seed 0 chooses rates.")] = "1,2,3,4,5",
    steps: Annotated[int, typer.Option(min=1, help="Of each run.")] = 1000,
    rates: Rates = "3e-3",
    objective: Objectives = None,
    only_tables: OnlyTables = False,
    tests: Tests = False,
    test_pairs: TestPairs = 0,
) -> None:
    """Train selectors and their controls on cached states of a frozen backbone; build tables.

    No test task is scored without --tests. A run that is in the file is not run again.
    """
    from s2sent.training.evaluation.results.output import require_writable
    from s2sent.training.experiments.frozen.tables import write_frozen_tables

    require_writable(output)
    if not only_tables:
        from s2sent.training.experiments.frozen.run import Plan, run_heads
        from s2sent.training.experiments.frozen.train import Schedule

        plan = Plan(
            some_whole_numbers(depths, "depths"),
            some_whole_numbers(seeds, "seeds"),
            Schedule(steps, 0.0, min(250, max(1, steps // 4)), batch_size),
            positive_numbers(rates, "learning rates"),
            arm or (),
            objective or (),  # type: ignore[arg-type]  # `run_heads` checks them
        )
        scored = test_pairs if tests else None
        run = partial(run_heads, template=template, retrieval=retrieval, test_pairs=scored)
        run(plan, backbone, data, cache, output)
    options = ["--backbone", backbone, "--depths", depths, "--data", data, "--cache", cache]
    command = shlex.join(map(str, ["frozen", *options, "--output", output, "--only-tables"]))
    typer.echo(write_frozen_tables(output, command))
