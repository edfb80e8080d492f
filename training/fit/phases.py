"""Trains the phases of a recipe one after the other: each begins with what the one before left.

    <output>.partial/phases/NAME    the checkpoint of each phase but the last, once it is done
    <output>.partial/last           that of the last one, which takes phases/ and becomes <output>

A resumed run leaves phases alone that are done, and goes on with the one that was interrupted.
"""

import logging
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from s2sent.training.errors import ConfigError, Interrupted
from s2sent.training.files.record import read_record
from s2sent.training.fit.preparation import SAVE_MINUTES, partial_of
from s2sent.training.fit.train import train
from s2sent.training.loop.processes import num_processes
from s2sent.training.loop.unfinished import require_free, saving
from s2sent.training.recipe.phases import PHASE, Phase, with_encoders

log = logging.getLogger(__name__)

PHASES, LAST, CACHE = "phases", "last", "cache"


def train_phases(
    phases: Sequence[Phase],
    data: Path,
    output: Path,
    *,
    cache: Path | None = None,
    resume: bool = False,
    save_minutes: float = SAVE_MINUTES,
    report_to: Sequence[str] = (),
) -> None:
    """Train every phase and leave the last one's checkpoint in ``output``.

    The options are those of `training.fit.train.train`, which trains a recipe without phases. The
    checkpoints of the other phases are in ``output/phases``; without ``cache`` teachers' embeddings
    are kept until the last phase is done. Raises what `train` raises, and `ConfigError` for several
    processes and where a phase that is done was trained by another recipe.
    """
    run = partial(train, data=data, save_minutes=save_minutes, report_to=report_to)
    if not phases[0].name:
        run(phases[0].recipe, output=output, cache=cache, resume=resume)
        return
    if num_processes() > 1:
        raise ConfigError("A recipe with phases is trained by one process: leave torchrun out.")
    work = partial_of(output)
    require_free(output, work, resume=resume)
    *first, last = phases
    folders = {phase.name: work / PHASES / phase.name for phase in first} | {last.name: work / LAST}
    named = {PHASE + name: str(folder) for name, folder in folders.items()}
    for phase in phases if not folders[last.name].exists() else [last]:
        folder = folders[phase.name]
        if folder.exists():
            _require_same(folder, phase)
            log.info("phase %s is done already", phase.name)
            continue
        log.info("phase %s", phase.name)
        folder.parent.mkdir(parents=True, exist_ok=True)
        recipe = with_encoders(phase.recipe, named, phase.name)
        begun = partial_of(folder).exists()
        outcome = run(recipe, output=folder, cache=cache or work / CACHE, resume=begun, phase=phase)
        if outcome.stopped is not None and phase is not last:
            raise Interrupted(
                f"Interrupted after phase {phase.name}: run the same command with --resume.",
                outcome.stopped,
            )
    _finish(work, output)


def _finish(work: Path, output: Path) -> None:
    """Put the phases into the last one's checkpoint, and that where it is to be."""
    with saving(work):
        if (work / PHASES).exists():
            (work / PHASES).rename(work / LAST / PHASES)
        (work / LAST).rename(output)
    shutil.rmtree(work)


def _require_same(folder: Path, phase: Phase) -> None:
    if read_record(folder).get("recipe") != phase.recipe.as_table():
        raise ConfigError(
            f"{folder} was trained by another recipe than that of phase {phase.name}: delete it,"
            " and those of the phases after it."
        )
