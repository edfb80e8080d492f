"""Low-rank updates that are trained in place of weights and merged into them before saving.

Of a backbone's linear layers they are LoRA (arXiv 2106.09685), by the peft library; the matrix of
an exit becomes a residual head of two thin layers. A saved checkpoint is one like any other.
"""

from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from s2sent.model.network.encoder import find_selector
from s2sent.training.recipe.recipe import TrainingConfig

_TUNER = "lora_tuner"


class LowRankUpdate(nn.Module):
    """Adds a product of [D, rank] and [rank, D], at the start zero, to a matrix [D, D]."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(width, rank) / width**0.5)
        self.up = nn.Parameter(torch.zeros(rank, width))

    def forward(self, matrix: Tensor) -> Tensor:
        """The updated matrix [D, D]."""
        return matrix + self.down @ self.up


def add_lora(encoder: SentenceTransformer, training: TrainingConfig) -> None:
    """Put updates on every linear layer of the backbone, whose own weights no longer train."""
    from peft import LoraConfig
    from peft.tuners.lora import LoraModel

    config = LoraConfig(
        r=training.lora_rank,
        lora_alpha=training.lora_alpha,  # type: ignore[arg-type]  # peft divides it by r
        lora_dropout=training.lora_dropout,
        target_modules="all-linear",
    )
    backbone: Any = encoder[0].get_submodule("auto_model")
    tuner = LoraModel(backbone, {"default": config}, "default")
    vars(encoder)[_TUNER] = tuner  # no submodule: the encoder has its parts already


def update_projections(encoder: SentenceTransformer, rank: int) -> None:
    """Put an update of this rank on the matrix of each exit, which itself no longer trains."""
    for matrices, name in _projections(encoder):
        matrix = matrices.get_parameter(name)
        matrix.requires_grad = False
        register_parametrization(matrices, name, LowRankUpdate(len(matrix), rank))


def has_updates(encoder: nn.Module) -> bool:
    """Whether an encoder has updates that are not merged yet."""
    parts = encoder.modules()
    return _TUNER in vars(encoder) or any(isinstance(part, LowRankUpdate) for part in parts)


def merge_updates(encoder: SentenceTransformer) -> None:
    """Add the updates to the weights that they are of; nothing is left of them."""
    if (tuner := vars(encoder).pop(_TUNER, None)) is not None:
        tuner.merge_and_unload()
    if has_updates(encoder):
        for matrices, name in _projections(encoder):
            remove_parametrizations(matrices, name)


def _projections(encoder: SentenceTransformer) -> list[tuple[nn.Module, str]]:
    """The matrix of each exit as the module that has it and its name there."""
    selector = find_selector(encoder)
    return [(selector.projections, name) for name in selector.projections] if selector else []
