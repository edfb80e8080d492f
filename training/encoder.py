"""Builds the encoder that a recipe starts from: backbone, selector, and the start of its gate."""

from pathlib import Path

from sentence_transformers import SentenceTransformer
from torch import nn

from model.network.encoder import find_selector, load_encoder
from model.network.selector import MODULE_FILE, S2SentSelector
from training.backbones import resolve, width_of
from training.errors import ConfigError
from training.objectives.families import family_of
from training.recipe import Recipe


def new_encoder(recipe: Recipe) -> SentenceTransformer:
    """The untrained encoder of a recipe; its pipeline ends in the pooling.

    Raises `ConfigError` where the selector does not fit the backbone.
    """
    folder = resolve(recipe.backbone.name)
    config = recipe.selector_config(width_of(folder))
    try:
        encoder = family_of(recipe).build_encoder(folder, recipe, config)
    except ValueError as error:
        raise ConfigError(f"[selector] does not fit {recipe.backbone.name}: {error}") from error
    if (selector := find_selector(encoder)) is not None and not _go_on(selector, recipe, folder):
        _start_gate(selector, recipe)
    if recipe.training.freeze_backbone:
        if not list(selector.parameters() if selector else ()):
            raise ConfigError("[training] freeze_backbone leaves nothing to train: add a selector.")
        encoder[0].requires_grad_(requires_grad=False)
    return encoder


def _go_on(selector: S2SentSelector, recipe: Recipe, folder: str) -> bool:
    """Whether the selector took the weights of one like it, which the backbone's checkpoint has.

    A recipe that says how the gate starts gets a new one.
    """
    if recipe.initial_bias or recipe.static or not Path(folder, MODULE_FILE).is_file():
        return False
    before = find_selector(load_encoder(folder))
    if before is None or before.config != selector.config:
        return False
    selector.load_state_dict(before.state_dict())
    return True


def _start_gate(selector: S2SentSelector, recipe: Recipe) -> None:
    """Set the gate's first weights as the recipe's ``initial_bias`` and ``static`` say."""
    if not recipe.initial_bias and not recipe.static:
        return
    gate = selector.spatial_selection
    if gate is None or gate.expand.bias is None:
        raise ConfigError("[selector] initial_bias and static need a gate with biases.")
    per_block = gate.expand.bias.detach().view(selector.config.num_heads, -1)  # [N, D]
    per_block.fill_(-recipe.initial_bias)
    per_block[-1] = recipe.initial_bias
    if recipe.static:
        gate.requires_grad_(requires_grad=False)
        nn.init.zeros_(gate.expand.weight)  # the output is then the bias, whatever the input
        gate.expand.bias.requires_grad_()
    if recipe.static == "blocks":
        # Equal first values and equal gradients keep the features of a block equal.
        gate.expand.bias.register_hook(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            lambda grad: (
                grad.view_as(per_block).mean(1, keepdim=True).expand_as(per_block).flatten()
            )
        )
