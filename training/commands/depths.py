"""The command ``s2sent-train depths``: what an encoder scores and costs at each depth."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from s2sent.model.artifact.reader import Artifact
from s2sent.training.commands.options import Data


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
    from s2sent.training.evaluation.depths.by_depth import evaluate_by_depth
    from s2sent.training.evaluation.depths.pairs import evaluate_depth_pairs

    _require_compatible(
        {"--only-table": only_table, "--pairs": pairs, "--dev-only": dev_only, "--record": record}
    )
    if retrieval is not None and not (pairs or dev_only):
        raise typer.BadParameter("--retrieval is development data: add --dev-only or --pairs.")
    if only_table:
        typer.echo(_recorded_table(model))
        return
    if pairs:
        evaluate_depth_pairs(model, data, typer.echo, retrieval)
        return
    evaluate_by_depth(
        model, data, typer.echo, dev_only=dev_only, retrieval=retrieval, record=record
    )


def _require_compatible(options: Mapping[str, bool]) -> None:
    """Refuse two of the options, each of which says what is done instead of the others."""
    given = [name for name, chosen in options.items() if chosen]
    if len(given) > 1:
        raise typer.BadParameter(f"{given[0]} and {given[1]} exclude each other: give one of them.")


def _recorded_table(model: Path) -> str:
    """The table in an artifact's manifest. Raises `EncoderError` where there is none."""
    from s2sent.training.errors import EncoderError
    from s2sent.training.evaluation.depths.by_depth import by_depth_table

    if table := by_depth_table(Artifact.open(model).manifest.by_depth):
        return table
    raise EncoderError(f"The manifest of {model} has no scores by depth: run depths with --record.")
