"""The command ``s2sent-train depths``: what an encoder scores and costs at each depth."""

from pathlib import Path
from typing import Annotated

import typer

from model.artifact.reader import Artifact
from training.commands.options import Data


def depths(
    model: Annotated[
        Path,
        typer.Argument(
            help="An artifact that was exported with --depths; with --dev-only or --pairs also a "
            "checkpoint with exits."
        ),
    ],
    data: Data,
    dev_only: Annotated[
        bool, typer.Option("--dev-only", help="Score development data alone, to choose a recipe.")
    ] = False,
    retrieval: Annotated[
        Path | None,
        typer.Option(help="With --dev-only or --pairs also R@1 and MRR@10 of this file."),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write what is found into the artifact's manifest.")
    ] = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Score every pair of depths on development data.")
    ] = False,
    only_table: Annotated[
        bool, typer.Option("--only-table", help="Only print what the manifest has.")
    ] = False,
) -> None:
    """Score an artifact at each depth and width, on the seven STS tests, and time each depth."""
    from training.evaluation.depths.by_depth import by_depth_table, evaluate_by_depth
    from training.evaluation.depths.pairs import evaluate_depth_pairs

    if only_table:
        typer.echo(by_depth_table(Artifact.open(model).manifest.by_depth))
        return
    if pairs:
        evaluate_depth_pairs(model, data, typer.echo, retrieval)
        return
    evaluate_by_depth(
        model, data, typer.echo, dev_only=dev_only, retrieval=retrieval, record=record
    )
