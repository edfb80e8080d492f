"""One run of training whose first gradients are written down: started by
`tests/training/test_train.py`.

torchrun --nproc-per-node 2 -m tests.support.gradients_of_two RECIPE DATA OUTPUT GRADIENTS
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from training.recipe import read_recipe
from training.train import train


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


if __name__ == "__main__":
    recipe, data, output, gradients = map(Path, sys.argv[1:])
    train(read_recipe(recipe), data, output, callbacks=[WriteGradients(gradients)])
