"""The weights that training changes: kept in memory at the best step, and saved to resume from."""

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

WEIGHTS_FILE = "trained.safetensors"  # of the step of a trainer's checkpoint
BEST_FILE = "best.safetensors"  # beside it: of the best step before, where there was a better one

Weights = dict[str, Tensor]


def trained_weights(encoder: nn.Module, loss: nn.Module) -> Weights:
    """What a step changes, by name: trained parameters and buffers, those of the loss's own too."""
    saved = encoder.state_dict(keep_vars=True)
    of_encoder = {
        name: value
        for name, value in saved.items()
        if value.requires_grad or not isinstance(value, nn.Parameter)
    }
    known = {id(value) for value in encoder.parameters()}
    own = {
        f"loss.{name}": value for name, value in loss.named_parameters() if id(value) not in known
    }
    return of_encoder | own


def copied(weights: Weights) -> Weights:
    """A copy in memory, on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in weights.items()}


def take(weights: Weights, saved: Weights) -> None:
    """Give weights the values that were saved of them."""
    for name, value in weights.items():
        value.data.copy_(saved[name])


def save_weights(weights: Weights, file: Path) -> None:
    """Write weights to a file, whose folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(copied(weights), file)


def load_weights(file: Path) -> Weights:
    """The weights of a file that `save_weights` wrote."""
    return load_file(file)
