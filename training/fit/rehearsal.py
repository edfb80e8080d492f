"""Says what a run would do, how long it would take and how much disk, from its first steps."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from s2sent.training.fit.preparation import partial_of, prepare, require_trackers
from s2sent.training.loop.unfinished import require_free
from s2sent.training.recipe.phases import PHASE, Phase, with_encoders
from s2sent.training.recipe.recipe import Recipe

STEPS = 20  # that are trained
# In bytes of trained weights: these, the best step's, and two averages of AdamW.
COPIES_IN_A_STATE = 4


class FirstSteps(TrainerCallback):
    """Takes the times of the first steps and of one score of dev, and ends the run."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.dev = 0.0  # seconds

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.dev = -time.monotonic()

    def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
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


@dataclass(frozen=True)
class Rehearsal:
    """What a run would do and take, from its first steps."""

    what: str  # is trained, and on what
    steps: int  # of the whole run
    seconds: float  # of training and scoring dev
    pace: str  # the seconds of a step, and of a score of dev
    checkpoint: int  # bytes
    unfinished: int  # bytes at most on disk until the run is done: two states


def take_first_steps(
    recipe: Recipe, data: Path, name: str, *, cache: Path | None = None
) -> Rehearsal:
    """Train the first steps of a run; nothing stays but what goes into ``cache``.

    Raises what `training.fit.train.train` raises before its first step.
    """
    with tempfile.TemporaryDirectory() as scratch:
        ready = prepare(recipe, data, Path(scratch, name), cache=cache)
        first = FirstSteps()
        ready.trainer.add_callback(first)  # type: ignore[no-untyped-call]  # transformers is partly typed
        ready.trainer.train()
    steps = int(ready.trainer.state.max_steps)
    scores = -(-steps // recipe.training.eval_every) + 2  # also at the start, and of what is saved
    weights = [*ready.encoder.parameters()]
    trained = [each for each in weights if each.requires_grad]
    counts = [sum(each.numel() for each in some) for some in (trained, weights)]
    sizes = [sum(each.nbytes for each in some) for some in (trained, weights)]
    rows = ", ".join(f"{count:,} of {source}" for source, count in ready.corpus.counts.items())
    return Rehearsal(
        what=f"trains {counts[0]:,} of {counts[1]:,} parameters of {recipe.backbone.name} with the"
        f" objective {recipe.objective.name}\n"
        f"on {rows}: {steps:,} steps of {recipe.training.batch_size} rows",
        steps=steps,
        seconds=steps * first.step + scores * first.dev,
        pace=f"{first.step:.3g} s a step, the median of the first {len(first.times) - 1}, and"
        f" {first.dev:.3g} s for each of {scores:,} scores of {len(ready.dev.gold):,} pairs of"
        " STS-B dev",
        checkpoint=sizes[1],
        unfinished=2 * COPIES_IN_A_STATE * sizes[0],
    )


def rehearse(
    recipe: Recipe,
    data: Path,
    output: Path,
    *,
    cache: Path | None = None,
    resume: bool = False,
    report_to: Sequence[str] = (),
) -> str:
    """Describe a whole run of `training.fit.train.train`, whose options these are.

    Its first steps are trained, without a tracker. Raises what `train` raises before its first one.
    """
    require_free(output, partial_of(output), resume=resume)
    require_trackers(report_to)
    found = take_first_steps(recipe, data, output.name, cache=cache)
    return (
        f"{found.what}\nabout {found.seconds / 60:,.1f} min: {found.pace}\n"
        f"{found.checkpoint / 1e6:,.1f} MB for {output}, and at most"
        f" {found.unfinished / 1e6:,.1f} MB for {partial_of(output)} until it is done;"
        f" {free_megabytes(output)} MB are free"
    )


def untrained(phases: Sequence[Phase]) -> Iterator[tuple[str, Recipe]]:
    """The name and recipe of each phase, in which an earlier phase stands for its backbone."""
    names: dict[str, str] = {}
    for phase in phases:
        recipe = with_encoders(phase.recipe, names, phase.name)
        names[PHASE + phase.name] = recipe.backbone.name
        yield phase.name, recipe


def free_megabytes(path: Path) -> str:
    """The free space of the disk on which a file or folder would be."""
    folder = next(each for each in path.absolute().parents if each.is_dir())
    return f"{shutil.disk_usage(folder).free / 1e6:,.0f}"
