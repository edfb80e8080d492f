"""Callbacks of the trainer: progress on the terminal and in the log, the last step, signals."""

import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState

from s2sent.training.loop.processes import num_processes

log = logging.getLogger(__name__)


class SettingsKept(TrainerCallback):
    """Leaves the backbone's settings as it was built with them.

    Before training the library writes the tokenizer's ids of padding, beginning and end into them.
    RoBERTa-like backbones count positions from the padding id: loaded again they would read other
    ones.
    """

    NAMES = ("bos_token_id", "eos_token_id", "pad_token_id", "use_cache")

    def __init__(self, config: Any) -> None:
        self.config = config
        self.kept = {name: getattr(config, name) for name in self.NAMES if hasattr(config, name)}

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        for name in self.NAMES:
            if name in self.kept:
                setattr(self.config, name, self.kept[name])
            elif hasattr(self.config, name):  # it had none
                delattr(self.config, name)


class Progress(TrainerCallback):
    """Shows steps, loss, dev score, rows per second and the time left, in the first process only.

    ``metric`` names the dev score among the evaluation's metrics. The rate includes the
    time of scoring dev.
    """

    def __init__(self, metric: str, batch_size: int) -> None:
        self.metric = metric
        self.batch_size = batch_size
        self.loss: float | None = None
        self.dev = float("nan")
        self.best = (float("-inf"), 0)  # score and step, of those trained
        self.bar: Bar | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.started, self.first = time.monotonic(), state.global_step
        if state.best_metric is not None and state.best_global_step:  # of the run that is resumed
            self.best = (state.best_metric, state.best_global_step)
        if state.is_world_process_zero and sys.stderr.isatty():
            self.bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                transient=True,
            )
            self.task = self.bar.add_task("training", total=state.max_steps)
            self.bar.start()

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        self.loss = kwargs["logs"].get("loss", self.loss)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=state.global_step, description=self._line(state))

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.dev = kwargs["metrics"].get(self.metric, float("nan"))
        # The first step of this process was scored before, or is the start, which is not kept.
        if state.global_step != self.first:
            self.best = max(self.best, (self.dev, state.global_step), key=lambda seen: seen[0])
        if state.is_world_process_zero:
            log.info("step %d/%d  %s", state.global_step, state.max_steps, self._line(state))

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _line(self, state: TrainerState) -> str:
        """What is known: before the first step of this process neither loss nor speed is."""
        done = state.global_step - self.first
        best, step = self.best
        parts = [f"dev {self.dev:.2f}"]
        if step:
            parts.append(f"best {best:.2f} at {step}")
        if self.loss is not None:
            parts.insert(0, f"loss {self.loss:.3g}")
        if done:
            seconds = time.monotonic() - self.started
            left = seconds / done * (state.max_steps - state.global_step)
            parts += [f"{done * self.batch_size / seconds:.0f} rows/s", f"{left:.0f} s left"]
        return "  ".join(parts)


class Saves(TrainerCallback):
    """Saves the state every so many minutes, and scores and saves the last step.

    The time is looked at when the loss is logged; the first process decides for all.
    """

    def __init__(self, minutes: float) -> None:
        self.seconds = 60 * minutes
        self.saved = time.monotonic()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.saved = time.monotonic()

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        self.saved = time.monotonic()

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step >= state.max_steps:
            control.should_evaluate = control.should_save = True
        elif state.global_step % args.logging_steps == 0:
            control.should_save |= self._due()

    def _due(self) -> bool:
        due = [time.monotonic() - self.saved >= self.seconds]
        if num_processes() > 1:
            torch.distributed.broadcast_object_list(due)
        return due[0]


class StopAtSignal(TrainerCallback):
    """Saves and ends the run after the current step once a signal has `asked` for it."""

    def __init__(self) -> None:
        self.number: int | None = None  # of the signal that came first
        self.interrupted_at: int | None = None  # the step after which the run ended

    @property
    def asked(self) -> bool:
        """Whether a signal came."""
        return self.number is not None

    def on_step_end(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.asked and state.global_step < state.max_steps:
            self.interrupted_at = state.global_step
            control.should_save = control.should_training_stop = True


@contextmanager
def stop_at_signal(trainer: Trainer) -> Iterator[StopAtSignal]:
    """Within the block the first SIGINT or SIGTERM ends training after the current step.

    The second one raises KeyboardInterrupt at once.
    """
    stop = StopAtSignal()
    trainer.add_callback(stop)  # type: ignore[no-untyped-call]  # transformers is partly typed

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.number = number
        log.info("stopping after this step; a second signal stops at once without saving")

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
