"""Trains a recipe: from the corpus to a saved checkpoint whose dev score is checked after loading.

    recipe + corpus -> encoder, loss -> sentence-transformers' trainer, STS-B dev every few steps
                    -> weights of the best step -> saved, loaded again, scored again -> output

During the run its state is in ``<output>.partial``. A resumed run ends with the same checkpoint as
an uninterrupted one.
"""

import logging
import math
import shutil
import statistics
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from transformers import TrainerCallback

from s2sent.training.backbones import origin, resolve
from s2sent.training.corpus import Corpus
from s2sent.training.errors import Interrupted, TrainingError
from s2sent.training.evaluation.encoders import is_url, load_checkpoint
from s2sent.training.evaluation.geometry import BlockWeights, block_weights
from s2sent.training.evaluation.sts import SentencePairs
from s2sent.training.files.record import read_record, write_record
from s2sent.training.fit.preparation import SAVE_MINUTES, partial_of, prepare
from s2sent.training.loop.callbacks import stop_at_signal
from s2sent.training.loop.dev import DEV_METRIC, dev_evaluator, truncated_to
from s2sent.training.loop.lookup import cached_backbone
from s2sent.training.loop.low_rank import has_updates, merge_updates
from s2sent.training.loop.trainer import Trainer
from s2sent.training.loop.unfinished import newest_state, require_free, reserved, saving
from s2sent.training.recipe.objectives import (
    JTCSE,
    SFP,
    Distillation,
    PairDistillation,
    PromptBERT,
)
from s2sent.training.recipe.phases import Phase
from s2sent.training.recipe.recipe import Recipe

log = logging.getLogger(__name__)

DEV_TOLERANCE = 0.01  # Spearman x 100: other batch shapes change the last bits of cosines


@dataclass(frozen=True)
class Outcome:
    """The result of a run: best dev score and step, the dev curve, the checkpoint's record."""

    dev: float
    step: int
    curve: list[tuple[int, float]]  # (step, Spearman x 100), from step 0
    record: dict[str, Any]
    stopped: int | None = None  # the signal that came in the last step: start no other run


def train(
    recipe: Recipe,
    data: Path,
    output: Path,
    *,
    cache: Path | None = None,
    resume: bool = False,
    save_minutes: float = SAVE_MINUTES,
    report_to: Sequence[str] = (),
    callbacks: Sequence[TrainerCallback] = (),
    phase: Phase | None = None,
) -> Outcome:
    """Train a recipe on ``data/corpus``, choose the step on ``data/sts``, save to ``output``.

    ``cache`` keeps teachers' embeddings between runs, and the states of a frozen backbone.
    ``resume`` continues an interrupted run of the same recipe from ``<output>.partial``, where its
    state is saved every ``save_minutes``. ``report_to`` names trackers that transformers knows.
    ``callbacks`` are added to the trainer's. The record has the recipe of ``phase`` in place of
    ``recipe``, which names its encoders by their folders. Raises a `TrainingError` for a recipe,
    data or backbone that cannot be used and when ``output`` exists, and `Interrupted` when SIGINT
    or SIGTERM ended the run after saving its state.
    """
    partial = partial_of(output)
    require_free(output, partial, resume=resume)
    ready = prepare(
        recipe, data, output, cache=cache, save_minutes=save_minutes, report_to=report_to
    )
    dev, corpus, encoder, trainer = ready.dev, ready.corpus, ready.encoder, ready.trainer
    with truncated_to(encoder, recipe.backbone.max_seq_length):
        start = block_weights(encoder, dev.first)
    for callback in callbacks:
        trainer.add_callback(callback)  # type: ignore[no-untyped-call]  # transformers is partly typed
    with reserved(output, partial, recipe, corpus):
        state = newest_state(partial, trainer.state_files()) if resume else None
        with _cached_backbone(encoder, recipe, cache):
            stopped = _run(trainer, state)
        _require_score(trainer, partial)
        outcome = _outcome(recipe, corpus, trainer, stopped=stopped)
        if phase is not None:
            outcome.record.update(recipe=phase.recipe.as_table(), phase=phase.name)
        if trainer.is_world_process_zero():
            _warn_of_better_start(outcome)
            _save(encoder, recipe, output, outcome, dev)
            if start is not None:
                _tell_weights(start, outcome.record["mean_block_weights"])
            shutil.rmtree(partial)
    return outcome


def _cached_backbone(
    encoder: SentenceTransformer, recipe: Recipe, cache: Path | None
) -> AbstractContextManager[Any]:
    """A frozen backbone runs once for each row of tokens, unless its dropout makes the views."""
    objective = recipe.objective
    views = not isinstance(objective, SFP | PairDistillation) and getattr(
        objective, "dropout", True
    )
    if cache is None or not recipe.training.freeze_backbone or views:
        return nullcontext()
    return cached_backbone(encoder, cache)


def _run(trainer: Trainer, state: Path | None) -> int | None:
    """Train to the last step; the signal that came in it. Raises `Interrupted` for one before.

    ``state`` is the checkpoint to go on from.
    """
    if state is not None and trainer.take_last_step(state):
        trainer.use_best_weights()
        return None
    with stop_at_signal(trainer) as stop, warnings.catch_warnings():
        # The trainer's own checkpoints are then ordered by their step.
        warnings.filterwarnings("ignore", message="mtime may not be reliable")
        trainer.train(resume_from_checkpoint=str(state) if state else None)
    if stop.interrupted_at is not None:
        raise Interrupted(
            f"Interrupted at step {stop.interrupted_at} of {trainer.state.max_steps}: "
            "run the same command with --resume to go on.",
            stop.number,
        )
    trainer.use_best_weights()
    return stop.number


def _require_score(trainer: Trainer, partial: Path) -> None:
    """Refuse a run of which no step can be kept; there is nothing to go on from, either."""
    if trainer.state.best_global_step is not None:
        return
    if trainer.is_world_process_zero():
        shutil.rmtree(partial)
    raise TrainingError(
        "No step has a score on STS-B dev that is a number: the training diverged, or all"
        " pairs have one score. Lower [training] learning_rate, or look at the file."
    )


def _outcome(recipe: Recipe, corpus: Corpus, trainer: Trainer, *, stopped: int | None) -> Outcome:
    """The result of a run, read from the trainer's state."""
    state, every = trainer.state, recipe.training.eval_every
    scores: dict[int, float] = {
        int(entry["step"]): entry[DEV_METRIC] for entry in state.log_history if DEV_METRIC in entry
    }
    # A resumed run also scored dev at the step where it was interrupted.
    curve = [
        (step, score)
        for step, score in sorted(scores.items())
        if step % every == 0 or step == state.max_steps
    ]
    step = int(state.best_global_step or 0)
    record = {
        "recipe": recipe.as_table(),
        "seed": recipe.seed,
        **_beginning(recipe),
        "corpus": {"sha256": corpus.sha256, "rows": corpus.counts}
        | ({"changed": corpus.changed} if corpus.changed else {}),
        "dev": {
            "task": "STS-B dev, Spearman x 100" + (", mean of depths" if recipe.elastic else ""),
            "score": round(scores[step], 4),
            "step": step,
            "curve": [
                [step, round(score, 4) if math.isfinite(score) else None] for step, score in curve
            ],
        },
    }
    return Outcome(scores[step], step, curve, record, stopped)


def _warn_of_better_start(outcome: Outcome) -> None:
    """Say that the kept step is below the start, which is not among the steps to choose from."""
    (_, start), *_ = outcome.curve
    if start > outcome.dev:
        log.warning(
            "STS-B dev was %.2f before the first step and is %.2f at step %d, the best of those"
            " trained, which is kept. Train longer or at another rate if dev should rise.",
            start,
            outcome.dev,
            outcome.step,
        )


def _beginning(recipe: Recipe) -> dict[str, Any]:
    """The backbone of a run, and the records of the checkpoints it began from or learned from."""
    name = recipe.backbone.name
    before = _record(name)
    found: dict[str, Any] = {"backbone": before.get("backbone", origin(name))}
    if before:
        found["began_from"] = before
    objective = recipe.objective
    if isinstance(objective, JTCSE):
        found["second_tower"] = _record(objective.second_tower)
    elif isinstance(objective, Distillation | PairDistillation):
        found["teachers"] = [_record(teacher) for teacher in objective.teachers]
    return {key: of_run for key, of_run in found.items() if any(of_run)}


def _record(name: str) -> dict[str, Any]:
    """The record of a checkpoint by its name; empty for a running service."""
    return {} if is_url(name) else read_record(Path(resolve(name)))


def _save(
    encoder: SentenceTransformer,
    recipe: Recipe,
    output: Path,
    outcome: Outcome,
    dev: SentencePairs,
) -> None:
    """Write the checkpoint; it is moved to ``output`` once it scored as it did in training."""
    scratch = output.with_name(output.name + ".unchecked")
    shutil.rmtree(scratch, ignore_errors=True)
    if has_updates(encoder):
        merge_updates(encoder)
    with truncated_to(encoder, recipe.backbone.max_seq_length):
        if not isinstance(recipe.objective, PromptBERT):  # whose loss reads lengths, too
            encoder.append(Normalize())
        with saving(scratch):
            encoder.save(str(scratch), create_model_card=False)
    saved = load_checkpoint(scratch)
    by_depth = dev_evaluator(recipe, dev).by_depth(saved)
    score = statistics.fmean(by_depth.values())
    if not abs(score - outcome.dev) <= DEV_TOLERANCE:  # also where it is NaN
        raise RuntimeError(f"the saved checkpoint scores {score:.4f}, not {outcome.dev:.4f}")
    if recipe.elastic is not None:
        outcome.record["dev"]["by_depth"] = {d: round(s, 4) for d, s in by_depth.items()}
    if (weights := block_weights(saved, dev.first)) is not None:
        outcome.record["mean_block_weights"] = [round(w, 4) for w in weights.mean.mean(1).tolist()]
    with saving(scratch):
        write_record(scratch, outcome.record)
        scratch.rename(output)
    log.info("saved %s: dev %.2f, loaded again and checked", output, score)


def _tell_weights(start: BlockWeights, after: Sequence[float]) -> None:
    """Log how much each fused block counts before training and after it, on STS-B dev."""
    blocks = ", ".join(map(str, start.blocks))
    before, now = (
        " ".join(f"{weight:.4f}" for weight in weights) for weights in (start.mean.mean(1), after)
    )
    log.info("mean weights of blocks %s: %s before training, %s now", blocks, before, now)
