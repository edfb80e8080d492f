"""The command ``s2sent-train fit``: trains a recipe, or says what that would take."""

from pathlib import Path
from typing import Annotated

import typer

from s2sent.training.commands.options import Data


def fit(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a TOML file.")],
    data: Data,
    output: Annotated[Path, typer.Option(help="New folder for the checkpoint.")],
    cache: Annotated[
        Path | None,
        typer.Option(
            help="Folder that keeps a teacher's embeddings, and states of a frozen backbone."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option(help="Go on with what an interrupted run of the recipe left.")
    ] = False,
    save_minutes: Annotated[
        float, typer.Option(min=0, help="Between two saves of the state that --resume needs.")
    ] = 10.0,
    report_to: Annotated[
        list[str] | None, typer.Option(help="tensorboard, wandb, ...; may be repeated.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would run, from 20 steps: time and disk."),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="In place of the recipe's.")] = None,
) -> None:
    """Train an encoder as a recipe says, and save the checkpoint that is best on STS-B dev."""
    from s2sent.training.fit.phases import train_phases
    from s2sent.training.recipe.phases import read_phases, with_seed

    phases = read_phases(recipe)
    if seed is not None:
        phases = with_seed(phases, seed)
    if dry_run:
        from s2sent.training.fit.rehearsal import rehearse, untrained

        for name, asked in untrained(phases):
            said = rehearse(
                asked, data, output, cache=cache, resume=resume, report_to=report_to or ()
            )
            typer.echo(f"phase {name} {said}" if name else said)
        return
    train_phases(
        phases,
        data,
        output,
        cache=cache,
        resume=resume,
        save_minutes=save_minutes,
        report_to=report_to or (),
    )
