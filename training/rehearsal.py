"""Says what a run would do, how long it would take and how much disk, from its first steps."""

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from s2sent.training.loop.unfinished import require_free
from s2sent.training.preparation import Prepared, partial_of, prepare
from s2sent.training.recipe.recipe import Recipe

STEPS = 20  # that are trained
# In bytes of trained weights: these, the best step's, and two averages of AdamW.
COPIES_IN_A_STATE = 4


class FirstSteps(TrainerCallback):
    """Takes the times of the first steps and of one score of dev, and ends the run."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.dev = 0.0  # seconds

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.dev = -time.monotonic()

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.dev += time.monotonic()
        self.times.append(time.monotonic())

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.times.append(time.monotonic())
        control.should_evaluate = control.should_save = False
        control.should_training_stop = state.global_step >= min(STEPS, state.max_steps)

    @property
    def step(self) -> float:
        """The median seconds of a step; the first one, which warms up, counts if it is alone."""
        seconds = [end - start for start, end in zip(self.times, self.times[1:], strict=False)]
        return statistics.median(seconds[1:] or seconds)


def rehearse(recipe: Recipe, data: Path, output: Path, *, cache: Path | None = None) -> str:
    """Train the first steps of a run of `training.train.train` and describe the run.

    Nothing stays but what goes into ``cache``. Raises what `train` raises before its first step.
    """
    require_free(output, partial_of(output), resume=False)
    with tempfile.TemporaryDirectory() as scratch:
        ready = prepare(recipe, data, Path(scratch, output.name), cache=cache)
        first = FirstSteps()
        ready.trainer.add_callback(first)  # type: ignore[no-untyped-call]  # transformers is partly typed
        ready.trainer.train()
    lines = (_what(recipe, ready), _time(recipe, ready, first), _disk(ready, output))
    return "\n".join(lines)


def _what(recipe: Recipe, ready: Prepared) -> str:
    every = [*ready.encoder.parameters()]
    trained = sum(each.numel() for each in every if each.requires_grad)
    rows = ", ".join(f"{count:,} of {source}" for source, count in ready.corpus.counts.items())
    return (
        f"trains {trained:,} of {sum(each.numel() for each in every):,} parameters of"
        f" {recipe.backbone.name} with the objective {recipe.objective.name}\n"
        f"on {rows}: {ready.trainer.state.max_steps:,} steps of {recipe.training.batch_size} rows"
    )


def _time(recipe: Recipe, ready: Prepared, first: FirstSteps) -> str:
    steps = ready.trainer.state.max_steps
    scores = -(-steps // recipe.training.eval_every) + 2  # the start and what is saved, too
    minutes = (steps * first.step + scores * first.dev) / 60
    return (
        f"about {minutes:,.1f} min: {first.step:.3g} s a step, the median of the first"
        f" {len(first.times) - 1}, and {first.dev:.3g} s for each of {scores:,} scores of"
        f" {len(ready.dev.gold):,} pairs of STS-B dev"
    )


def _disk(ready: Prepared, output: Path) -> str:
    def megabytes(trained_only: bool) -> float:
        weights = ready.encoder.parameters()
        taken = (each for each in weights if each.requires_grad or not trained_only)
        return sum(each.numel() * each.element_size() for each in taken) / 1e6

    state = COPIES_IN_A_STATE * megabytes(trained_only=True)
    folder = next(each for each in output.absolute().parents if each.is_dir())
    return (
        f"{megabytes(trained_only=False):,.1f} MB for {output}, and at most {2 * state:,.1f} MB for"
        f" {partial_of(output)} until it is done; {shutil.disk_usage(folder).free / 1e6:,.0f} MB"
        " are free"
    )
