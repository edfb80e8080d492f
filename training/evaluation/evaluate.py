"""Scores encoders on the STS tasks and the transfer tasks, as Markdown tables and as JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from model.artifact.reader import Artifact
from model.artifact.writer import record_scores
from training.evaluation.encoders import open_encoder
from training.evaluation.geometry import geometry
from training.evaluation.markdown import markdown_head, markdown_row
from training.evaluation.sts import AVERAGE, TASKS, Remembered, distinct, score, with_average
from training.evaluation.transfer import TASKS as TRANSFER_TASKS
from training.evaluation.transfer import score_transfer


def evaluate_encoders(
    names: Sequence[str],
    data: Path,
    show: Callable[[str], None],
    *,
    transfer: bool = False,
    json_file: Path | None = None,
    record: bool = False,
) -> None:
    """Score encoders and ``show`` the tables line by line, each as soon as it is known.

    ``json_file`` gets all scores unrounded, with geometry. ``record`` writes the STS scores of the
    first name into its manifest. Raises `ArtifactError` where that is no artifact, and a
    `TrainingError` for an encoder or data that cannot be used.
    """
    artifact = Artifact.open(names[0]) if record else None
    found: dict[str, dict[str, dict[str, float]]] = {}
    show(markdown_head(["", *TASKS, AVERAGE], numeric=True))
    for name in distinct(names):
        encode = Remembered(open_encoder(name))
        scores = with_average(score(encode, data / "sts"))
        found[name] = {"sts": scores}
        show(_score_row(name, scores))
        if artifact is not None and name == names[0]:
            record_scores(artifact, {task: round(value, 2) for task, value in scores.items()})
        if transfer:
            found[name]["transfer"] = with_average(score_transfer(encode, data / "transfer"))
        if json_file is not None:
            found[name]["geometry"] = geometry(encode, data / "sts")
    if transfer:
        show("\n" + markdown_head(["", *TRANSFER_TASKS, AVERAGE], numeric=True))
        for name, of in found.items():
            show(_score_row(name, of["transfer"]))
    if json_file is not None:
        json_file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _score_row(name: str, scores: Mapping[str, float]) -> str:
    return markdown_row([name, *(f"{value:.2f}" for value in scores.values())])
