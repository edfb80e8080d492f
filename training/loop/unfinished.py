"""What a run that is not done leaves in ``<output>.partial``, and what of it a run goes on from.

The trainer writes each ``checkpoint-STEP`` in place, its state last, and then removes the one
before; a run that was killed, or that found the disk full, leaves one that lacks files.
"""

import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from s2sent.training.corpus import Corpus
from s2sent.training.errors import ConfigError, TrainingError
from s2sent.training.files.locks import locked
from s2sent.training.files.record import write_json
from s2sent.training.loop.processes import num_processes, process_rank
from s2sent.training.loop.weights import BEST_FILE
from s2sent.training.recipe.recipe import Recipe

log = logging.getLogger(__name__)

# What RuntimeErrors of torch.save name that cannot write.
TORCH_WRITER = ("PytorchStreamWriter", "iostream", "inline_container")
RECIPE_FILE = "recipe.json"  # what is trained there


def require_free(output: Path, partial: Path, *, resume: bool) -> None:
    """Raise `ConfigError` where a run is done, or where one is unfinished and not to be resumed."""
    if output.exists():
        raise ConfigError(f"{output} exists already: name a new folder, or delete it first.")
    if partial.exists() and not resume and process_rank() == 0:
        raise ConfigError(
            f"{partial} holds an interrupted run: go on with --resume, or delete it first."
        )


@contextmanager
def reserved(output: Path, partial: Path, recipe: Recipe, corpus: Corpus) -> Iterator[None]:
    """Within the block ``partial`` is this run's alone, and says what is trained there.

    Raises `ConfigError` where another process trains there or has finished ``output``, where
    something else was trained there, and where nothing says what.
    """
    if process_rank() != 0:
        yield
        return
    require_free(output, partial, resume=True)  # another may have ended in the meantime
    partial.mkdir(parents=True, exist_ok=True)
    with locked(partial / RECIPE_FILE) as free:
        if not free:
            raise ConfigError(
                f"{partial} is in use by another process, which trains there: wait for its end, or"
                " name another --output."
            )
        _write_or_check(partial, recipe, corpus)
        yield


def _write_or_check(partial: Path, recipe: Recipe, corpus: Corpus) -> None:
    """Write into ``partial`` what is trained there, or check it against what is resumed."""
    file = partial / RECIPE_FILE
    own: dict[str, Any] = {"recipe": recipe.as_table(), "corpus": corpus.sha256}
    if (processes := num_processes()) > 1:
        own["processes"] = processes
    if not file.is_file() and not _checkpoints(partial):
        write_json(file, own)
    elif _read_json(file) is None:
        raise ConfigError(
            f"{file}, which says what the interrupted run trains, is missing or not whole: delete"
            f" {partial} and begin anew."
        )
    elif _read_json(file) != own:
        raise ConfigError(
            f"{partial} was begun with another recipe, corpus or number of processes: give it"
            " those, or delete it."
        )


def newest_state(partial: Path, files: Sequence[str]) -> Path | None:
    """The newest checkpoint that has all of ``files`` and its best weights; None where none has.

    Later ones, which lack some, are removed.
    """
    checkpoints = _checkpoints(partial)
    whole = [number for number, path in checkpoints.items() if _is_whole(path, files)]
    newest = max(whole, default=None)
    for number, path in checkpoints.items():
        if process_rank() == 0 and (newest is None or number > newest):
            log.warning("%s was not saved whole and is removed", path)
            shutil.rmtree(path)
    if newest is not None:
        return checkpoints[newest]
    log.warning("%s holds no whole state to go on from: training begins anew", partial)
    return None


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Raises a `TrainingError` where the block cannot write ``folder``, as on a full disk."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if type(error) is RuntimeError and not any(name in str(error) for name in TORCH_WRITER):
            raise
        reason, *_ = str(error).strip().splitlines() or [type(error).__name__]
        raise TrainingError(
            f"{folder} cannot be saved ({reason}): make room or give access, then run again with"
            " --resume."
        ) from error


def folder_of(step: int | str) -> str:
    """The name of the trainer's checkpoint of a step."""
    return f"{PREFIX_CHECKPOINT_DIR}-{step}"


def _checkpoints(partial: Path) -> dict[int, Path]:
    """The trainer's checkpoints by their step, whole or not."""
    folders = {path.name.rpartition("-")[2]: path for path in partial.glob(folder_of("*"))}
    return {int(step): path for step, path in folders.items() if step.isdecimal()}


def _is_whole(checkpoint: Path, files: Sequence[str]) -> bool:
    state = _read_json(checkpoint / TRAINER_STATE_NAME)
    if state is None or not all(_has_content(checkpoint / file) for file in files):
        return False
    best = state.get("best_global_step")
    return best in (None, state.get("global_step")) or _has_content(checkpoint / BEST_FILE)


def _has_content(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except OSError:  # also where another process removes it at the same time
        return False


def _read_json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None where there is none, or half of one."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
