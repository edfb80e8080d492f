"""Trains the checkpoint that a run of an experiment needs, and deletes it when it is scored."""

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from s2sent.training.errors import ConfigError, Interrupted
from s2sent.training.evaluation.results.openings import note_opening
from s2sent.training.experiments.locks import claim, lock_of
from s2sent.training.files.jsonl import append_line, read_lines
from s2sent.training.files.record import read_record
from s2sent.training.recipe.recipe import Recipe, recipe_from

log = logging.getLogger(__name__)


class Train(Protocol):
    """Trains a recipe and leaves a checkpoint with its record: `training.train.train` does."""

    def __call__(
        self, recipe: Recipe, data: Path, output: Path, *, cache: Path | None, resume: bool
    ) -> Any: ...


def run_missing(
    file: Path, key: Mapping[str, Any], checkpoint: Path, run: Callable[[], Mapping[str, Any]]
) -> None:
    """Add the line that ``run`` gives, unless one with this key is there.

    A run whose checkpoint another process has claimed is left to it.
    """

    def is_there() -> bool:
        return any(key.items() <= line.items() for line in read_lines(file))

    if is_there():
        return
    with claim(lock_of(checkpoint), checkpoint.stem) as free:
        if free and not is_there():
            append_line(file, run())


def ensure_checkpoint(
    folder: Path, recipe: Recipe, data: Path, train: Train, *, cache: Path | None = None
) -> float | None:
    """Leave the checkpoint of a recipe in ``folder``; the seconds of training, or None.

    It is None where the checkpoint was there. An interrupted run goes on. Raises `Interrupted` when
    a signal ends this one, and `ConfigError` where the checkpoint is another recipe's.
    """
    if folder.exists():
        made_by = read_record(folder).get("recipe")
        if made_by is None or recipe_from(made_by, str(folder)) != recipe:
            raise ConfigError(f"{folder} is of another recipe: move it away.")
        return None
    log.info("training %s", folder)
    partial = folder.with_name(f"{folder.name}.partial")
    again = "Interrupted: give the same command again to go on."
    try:
        outcome = train(recipe, data, folder, cache=cache, resume=partial.exists())
    except Interrupted as error:
        raise Interrupted(again, error.number) from error
    if outcome.stopped is not None:
        raise Interrupted(again, outcome.stopped)
    return float(outcome.seconds)


def leave_scored(checkpoint: Path, *, keep: bool) -> None:
    """Delete a checkpoint that was scored on the tests; one that is kept gets its line of that."""
    if keep:
        note_opening(str(checkpoint))
    else:
        shutil.rmtree(checkpoint)
