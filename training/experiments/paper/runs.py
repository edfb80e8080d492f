"""Runs experiments: trains and scores each cell that has no result yet, and writes its result.

A cell whose result is in the file is skipped, so an interrupted series continues when its command
is given again.
"""

import logging
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from s2sent.training.experiments.checkpoints import Train, ensure_checkpoint, leave_scored
from s2sent.training.experiments.locks import claim
from s2sent.training.experiments.paper.cells import Cell, Series, cells, corpus_sha256, is_done
from s2sent.training.experiments.paper.plan.experiments import Experiment
from s2sent.training.experiments.paper.scoring import score_checkpoint
from s2sent.training.files.jsonl import append_line
from s2sent.training.files.record import provenance, read_record
from s2sent.training.train import train as train_recipe

log = logging.getLogger(__name__)

VERSIONS = ("torch", "transformers", "sentence-transformers", "numpy", "scipy", "scikit-learn")


class Score(Protocol):
    """Gives the numbers of a checkpoint: `score_checkpoint` does."""

    def __call__(self, checkpoint: Path, data: Path, *, transfer: bool) -> dict[str, Any]: ...


def run(
    experiments: Sequence[Experiment],
    series: Series,
    *,
    train: Train = train_recipe,
    score: Score = score_checkpoint,
) -> None:
    """Train and score every cell that has no result yet.

    Raises a `TrainingError` for a result of another recipe, before anything is trained, and
    `Interrupted` when a signal ended a run.
    """
    todo, left_out = cells(experiments, series)
    for name, reason in left_out.items():
        log.info("left out: %s, as %s", name, reason)
    sha256 = corpus_sha256(series.data, todo)
    for cell in todo:
        is_done(cell, sha256[cell.stem])
    for number, cell in enumerate(todo, start=1):
        head = f"{number} of {len(todo)}: {cell.name}"
        with claim(cell.lock, head) as free:
            if not free:
                continue
            if is_done(cell, sha256[cell.stem]):
                log.info("%s has its result", head)
            else:
                log.info("%s", head)
                result = run_cell(cell, series, train=train, score=score)
                log.info("%s: average %.2f", head, result["scores"]["average"])


def run_cell(cell: Cell, series: Series, *, train: Train, score: Score) -> dict[str, Any]:
    """Train a cell, or resume its interrupted run, score it, and write its result."""
    checkpoint = cell.checkpoint
    seconds = ensure_checkpoint(checkpoint, cell.recipe, series.data, train)
    record = read_record(checkpoint)
    result = {
        "configuration": cell.configuration,
        "objective": cell.objective,
        "seed": cell.recipe.seed,
        "recipe": cell.recipe.as_table(),
        "corpus_sha256": record["corpus"]["sha256"],
        "dev": record["dev"]["score"],
        "step": record["dev"]["step"],
        "curve": record["dev"]["curve"],
        "mean_block_weights": record.get("mean_block_weights"),
        "seconds": seconds,  # null where training had ended before an interruption
        **score(checkpoint, series.data, transfer=cell.transfer),
        "versions": {name: version(name) for name in VERSIONS},
        **provenance(),
    }
    append_line(cell.results, result)
    leave_scored(checkpoint, keep=series.keep)
    return result
