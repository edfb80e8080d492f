"""Interrupts a training run at a chosen step, as Ctrl-C does."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from s2sent.training.loop.trainer import Trainer


@contextmanager
def interrupted_at(step: int, number: signal.Signals = signal.SIGINT) -> Iterator[None]:
    """Within this context every run gets this signal in the middle of this step."""
    original = Trainer.training_step

    def interrupted(self: Trainer, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.state.global_step == step - 1:
            signal.raise_signal(number)
        loss: torch.Tensor = original(self, *args, **kwargs)
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "training_step", interrupted)
        yield
