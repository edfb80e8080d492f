"""Runs of training whose first gradients are written down, for `training/loop/test_trainer.py`.

It fails if the process group outlives the runs: its threads would abort the process now and then.

torchrun --nproc-per-node 2 -m tests.support.gradients_of_two DATA OUTPUT RECIPE...
"""

import atexit
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from s2sent.training.fit.train import train
from s2sent.training.recipe.recipe import read_recipe


class WriteGradients(TrainerCallback):
    """Save the gradients of the first step, as the optimiser is about to see them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_pre_optimizer_step(
        self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 0 and state.is_world_process_zero:
            named = kwargs["model"].named_parameters()
            found = {name: value.grad for name, value in named if value.grad is not None}
            torch.save(
                {name.removeprefix("module."): grad for name, grad in found.items()}, self.path
            )


def write_gradients(data: Path, output: Path, recipes: Sequence[Path]) -> None:
    """Train each recipe into the folder of its name in ``output``; its gradients are beside it."""
    output.mkdir(exist_ok=True)
    for recipe in recipes:
        callbacks = [WriteGradients(output / f"{recipe.stem}.pt")]
        train(read_recipe(recipe), data, output / recipe.stem, callbacks=callbacks)


def fail_with_a_process_group() -> None:
    """End the process with an error if torch.distributed is still at work."""
    if torch.distributed.is_initialized():
        sys.stderr.write("The process group was not destroyed.\n")
        sys.stderr.flush()
        os._exit(3)


if __name__ == "__main__":
    atexit.register(fail_with_a_process_group)  # the first to be registered runs last
    data, output, *recipes = map(Path, sys.argv[1:])
    write_gradients(data, output, recipes)
