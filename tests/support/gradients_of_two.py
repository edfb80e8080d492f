"""Runs of training whose first gradients are written down, for `training/loop/test_trainer.py`.

python -m tests.support.gradients_of_two DATA OUTPUT RECIPE...

It trains in two processes, as `torchrun --standalone --nproc-per-node 2` starts them, but that they
have what is imported here. It fails if the process group outlives the runs: its threads would
abort the process now and then.
"""

import atexit
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
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


def write_gradients_and_end(data: Path, output: Path, recipes: Sequence[Path]) -> None:
    """The same; raises RuntimeError if torch.distributed is still at work afterwards."""
    write_gradients(data, output, recipes)
    atexit._run_exitfuncs()  # which a forked process does not
    if torch.distributed.is_initialized():
        raise RuntimeError("The process group was not destroyed.")


if __name__ == "__main__":
    data, output, *recipes = map(Path, sys.argv[1:])
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="two",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    elastic_launch(launch, write_gradients_and_end)(data, output, recipes)
