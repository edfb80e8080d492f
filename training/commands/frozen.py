"""The command ``s2sent-train frozen``: selectors and controls on a frozen backbone's states."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from s2sent.training.commands.options import Data, positive_numbers, some_whole_numbers

if TYPE_CHECKING:
    from s2sent.training.frozen.experiment import Plan
    from s2sent.training.frozen.setting import Reading, Setting


Template = Annotated[
    str, typer.Option(help="Read a causal backbone inside it: a preset's name or a text.")
]
Teacher = Annotated[
    str | None, typer.Option(help="The encoder that the objective teacher follows.")
]
Objectives = Annotated[
    list[str] | None,
    typer.Option(help="distillation, contrastive, sfp, teacher; may be repeated."),
]
Rates = Annotated[str, typer.Option(help="Learning rates of every arm, such as 1e-3,1e-2.")]


def frozen(
    data: Data,
    output: Annotated[Path, typer.Option(help="The JSONL file that runs are added to.")],
    backbone: Annotated[str, typer.Option(help="The encoder whose blocks are frozen.")],
    cache: Annotated[Path, typer.Option(help="Folder that keeps block states between runs.")],
    exits: Annotated[str, typer.Option(help="Numbers of blocks, such as 3,6.")],
    retrieval: Annotated[
        Path | None, typer.Option(help="Queries and documents, development data.")
    ] = None,
    template: Template = "",
    teacher: Teacher = None,
    arm: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated.")] = None,
    batch_size: Annotated[int, typer.Option(min=2, help="Pairs.")] = 64,
    seeds: Annotated[str, typer.Option(help="Seeds from 1; seed 0 chooses rates.")] = "1,2,3,4,5",
    steps: Annotated[int, typer.Option(min=1, help="Of each run.")] = 1000,
    rates: Rates = "3e-3",
    objective: Objectives = None,
    only_tables: Annotated[bool, typer.Option("--only-tables", help="Only print tables.")] = False,
    tests: Annotated[
        bool, typer.Option("--tests", help="At the end of all: score the seven STS tests, once.")
    ] = False,
    test_pairs: Annotated[
        int, typer.Option(min=0, help="Of each test, at equal steps; 0 takes all.")
    ] = 0,
) -> None:
    """Train selectors and their controls on cached states of a frozen backbone; print tables.

    No test task is scored without --tests. A run that is in the file is not run again.
    """
    from s2sent.training.frozen.tables import frozen_tables

    if not only_tables:
        from s2sent.training.backbones import resolve
        from s2sent.training.evaluation.results.output import require_writable
        from s2sent.training.experiments.paper.cells import size_of
        from s2sent.training.frozen.experiment import run_plan
        from s2sent.training.frozen.opening import open_tests
        from s2sent.training.frozen.setting import Reading

        require_writable(output)
        depths, chosen = some_whole_numbers(exits, "exits"), some_whole_numbers(seeds, "seeds")
        blocks, _ = size_of(resolve(backbone))
        reading = Reading.inside(template, blocks) if template else None
        plan = _plan(depths, chosen, steps, batch_size, rates, arm, objective, reading)
        _require_possible(plan, blocks, reading, teacher)
        setting = _setting(backbone, data, retrieval, cache, reading, teacher)
        run_plan(setting, plan, output, cache)
        if tests:
            open_tests(setting, data, cache, output, pairs_per_task=test_pairs)
    typer.echo(frozen_tables(output))


def _plan(
    exits: list[int],
    seeds: list[int],
    steps: int,
    batch_size: int,
    rates: str,
    arms: list[str] | None,
    objectives: list[str] | None,
    reading: "Reading | None",
) -> "Plan":
    """Which runs there are; a decoder has arms of its own, as far as it has blocks for them."""
    from s2sent.training.frozen.arms import ARMS, DECODER_ARMS, ENCODER_ARMS
    from s2sent.training.frozen.experiment import (
        ENCODER_OBJECTIVES,
        Plan,
        checked_arms,
        checked_objectives,
    )
    from s2sent.training.frozen.train import Schedule

    every = [*ENCODER_ARMS]
    if reading is not None:
        every = [name for name in DECODER_ARMS if ARMS[name].num_blocks <= reading.num_blocks]
    return Plan(
        exits,
        seeds,
        Schedule(steps, 0.0, min(250, max(1, steps // 4)), batch_size),
        positive_numbers(rates, "learning rates"),
        checked_arms(arms or every),
        checked_objectives(objectives or ENCODER_OBJECTIVES),
    )


def _require_possible(
    plan: "Plan", blocks: int, reading: "Reading | None", teacher: str | None
) -> None:
    """Refuse a plan before any state is computed."""
    from s2sent.training.frozen.experiment import require_possible

    kept = blocks if reading is None else reading.num_blocks
    require_possible(
        plan,
        depth=blocks,
        first=blocks - kept + 1,
        two_stages=reading is not None and reading.two_stages,
        taught=teacher is not None,
    )


def _setting(
    backbone: str,
    data: Path,
    retrieval: Path | None,
    cache: Path,
    reading: "Reading | None",
    teacher: str | None,
) -> "Setting":
    """The texts and their states; those of a decoder are short, as it reads each in a template."""
    from s2sent.training.experiments.decoders.plan import BUDGETS, corpus_of
    from s2sent.training.frozen.setting import CORPUS, read_setting

    return read_setting(
        backbone,
        data,
        retrieval,
        cache,
        corpus=corpus_of(BUDGETS["short"]) if reading else CORPUS,
        reading=reading,
        teacher=teacher,
    )
