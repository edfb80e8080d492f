"""Low-rank updates of a backbone's linear layers (LoRA, arXiv 2106.09685), by the peft library.

They are trained in place of the backbone's weights and merged into them before the checkpoint is
saved, which then is one like any other.
"""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from training.recipe.recipe import TrainingConfig

FILE = "trained.safetensors"  # in the trainer's own checkpoints: what is trained, and nothing else
_TUNER = "lora_tuner"


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


def has_lora(encoder: nn.Module) -> bool:
    """Whether `add_lora` put updates on an encoder that are not merged yet."""
    return _TUNER in vars(encoder)


def merge_lora(encoder: SentenceTransformer) -> None:
    """Add the updates to the backbone's weights; nothing is left of them."""
    vars(encoder).pop(_TUNER).merge_and_unload()


def save_trained(encoder: nn.Module, folder: Path) -> None:
    """Write the trained weights, those of the selector among them."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_trained(encoder), folder / FILE)


def load_trained(encoder: nn.Module, folder: Path) -> None:
    """Give an encoder the weights that `save_trained` wrote."""
    saved = load_file(folder / FILE)
    for name, value in _trained(encoder).items():
        value.data.copy_(saved[name])


def _trained(encoder: nn.Module) -> dict[str, Tensor]:
    named = encoder.named_parameters()
    return {name: value.contiguous() for name, value in named if value.requires_grad}
