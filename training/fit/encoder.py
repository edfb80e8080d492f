"""Builds the encoder that a recipe starts from: backbone, selector, and the start of its gate."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from sentence_transformers import SentenceTransformer
from torch import nn

from s2sent.model.network.encoder import (
    build_encoder,
    build_plain_encoder,
    build_prompt_encoder,
    find_selector,
    get_selector,
    load_encoder,
    pooling_mode,
)
from s2sent.model.network.loading.checkpoint import CheckpointError, has_selector
from s2sent.model.network.loading.probe import embed_probe
from s2sent.model.network.pooled import require_exits
from s2sent.model.network.selector import S2SentSelector
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.template import (
    PaddingError,
    TemplateError,
    require_padding,
    template_text,
)
from s2sent.model.network.twins import join_towers
from s2sent.training.backbones import resolve, width_of
from s2sent.training.errors import ConfigError
from s2sent.training.fit.left_out import left_out
from s2sent.training.loop.low_rank import add_lora, update_projections
from s2sent.training.recipe.objectives import JTCSE, PromptBERT
from s2sent.training.recipe.recipe import Recipe

log = logging.getLogger(__name__)


def new_encoder(recipe: Recipe) -> SentenceTransformer:
    """The untrained encoder of a recipe; its pipeline ends in the pooling.

    Raises `ConfigError` where the selector does not fit the backbone.
    """
    folder = resolve(recipe.backbone.name)
    config = recipe.selector_config(width_of(folder))
    try:
        encoder = _build(folder, recipe, config)
        if not recipe.backbone.template:
            require_padding(getattr(encoder[0], "tokenizer", None), recipe.backbone.name)
            embed_probe(recipe.backbone.name, encoder)
    except PaddingError as error:
        raise ConfigError(str(error)) from None
    except CheckpointError:
        raise
    except ValueError as error:
        raise ConfigError(f"[selector] does not fit {recipe.backbone.name}: {error}") from error
    selector = find_selector(encoder)
    goes_on = selector is not None and _continues(selector, recipe, folder)
    if selector is not None and not goes_on:
        _start_gates(selector, recipe)
    if missing := left_out(Path(folder), recipe, selector_goes_on=goes_on):
        log.warning("%s is trained without %s", recipe.backbone.name, "; ".join(missing))
    _require_depths(selector, recipe, encoder)
    if recipe.training.lora_rank:
        add_lora(encoder, recipe.training)
    if recipe.elastic is not None and recipe.elastic.exits_only:
        _train_exits_only(encoder)
    if recipe.elastic is not None and recipe.elastic.project_rank:
        update_projections(encoder, recipe.elastic.project_rank)
    if recipe.training.freeze_blocks:
        _freeze_blocks(encoder[0].get_submodule("auto_model"), recipe.training.freeze_blocks)
    if recipe.training.round_matrices:
        _round_matrices(encoder)
    if recipe.training.freeze_backbone:
        if not list(selector.parameters() if selector else ()):
            raise ConfigError("[training] freeze_backbone leaves nothing to train: add a selector.")
        encoder[0].requires_grad_(requires_grad=False)
    return encoder


def _build(folder: str, recipe: Recipe, config: SelectorConfig | None) -> SentenceTransformer:
    """The backbone of ``folder`` with a selector; without ``config`` with pooling alone.

    Sentences are read inside the objective's templates or that of the recipe, where there is one.
    Raises ValueError where the backbone does not fit, and `ConfigError`.
    """
    backbone, objective = recipe.backbone, recipe.objective
    limit, pooling = backbone.max_seq_length, backbone.pooling
    if isinstance(objective, JTCSE):
        return _build_twins(folder, recipe, objective.second_tower)
    own = objective.templates if isinstance(objective, PromptBERT) else []
    if not (own or backbone.template):
        if config is not None:
            return build_encoder(folder, config, max_seq_length=limit, normalize=False)
        return build_plain_encoder(folder, pooling=pooling, max_seq_length=limit, normalize=False)
    try:
        return build_prompt_encoder(
            folder,
            config,
            own or [template_text(backbone.template)],
            pooling=pooling,
            max_seq_length=limit,
            clean_up="full_stop" if own else backbone.clean_up,
        )
    except TemplateError as error:
        raise ConfigError(str(error)) from error


def _build_twins(folder: str, recipe: Recipe, second: str) -> SentenceTransformer:
    """Twins of the checkpoint in ``folder`` and of another, with their selectors and poolings.

    Raises `ConfigError` for a tower that is no checkpoint, and for towers that are not built alike.
    """
    backbone = recipe.backbone
    towers = [_tower(backbone.name, folder), _tower(second, resolve(second))]
    if backbone.pooling not in ("mean", pooling_mode(towers[0])):  # "mean" is also what is not said
        raise ConfigError(
            f"[backbone] pooling = {backbone.pooling!r}, and {backbone.name} pools by "
            f"{pooling_mode(towers[0])}: leave it out, since towers keep their pooling."
        )
    try:
        twins = join_towers(*towers, normalize=False)
    except CheckpointError as error:
        raise ConfigError(f"{backbone.name} and {second}: {error}") from None
    twins.max_seq_length = backbone.max_seq_length
    return twins


def _tower(name: str, folder: str) -> SentenceTransformer:
    try:
        return load_encoder(folder)
    except CheckpointError as error:
        raise ConfigError(
            f"the tower {name} is no checkpoint ({str(error).rstrip('.')}): "
            "train it first, with the objective simcse."
        ) from None


def _train_exits_only(encoder: SentenceTransformer) -> None:
    """Leave only the gates and matrices of exits to be trained."""
    selector = get_selector(encoder)
    encoder.requires_grad_(requires_grad=False)
    for parts in (selector.exits, selector.projections):
        parts.requires_grad_(requires_grad=True)
    if not any(each.requires_grad for each in encoder.parameters()):
        raise ConfigError(
            "[elastic] exits_only leaves nothing to train: the exits have neither gates nor"
            " matrices. Set project = true, or a spatial_selection other than 'avg'."
        )


def _freeze_blocks(backbone: nn.Module, count: int) -> None:
    """Leave only the blocks behind the first ``count`` to be trained, of all that a backbone has.

    Embeddings, final norms and what all blocks share stay as they are, so that the states of the
    first blocks do, too.
    """
    full = int(cast(Any, backbone).config.num_hidden_layers)
    if count >= full:
        raise ConfigError(
            f"[training] freeze_blocks = {count} leaves none of the backbone's {full} blocks to"
            f" train: choose 1 to {full - 1}, or freeze_backbone."
        )
    lists = (each for each in backbone.modules() if isinstance(each, nn.ModuleList))
    blocks = next((each for each in lists if len(each) == full), None)
    if blocks is None:
        raise ConfigError(
            f"[training] freeze_blocks = {count} needs a backbone with a list of its {full} blocks,"
            f" which {type(backbone).__name__} lacks: leave it out, or choose freeze_backbone."
        )
    backbone.requires_grad_(requires_grad=False)
    blocks[count:].requires_grad_(requires_grad=True)


def _round_matrices(encoder: SentenceTransformer) -> None:
    """Put the matrices of backbone and exits on the grid that `weight-int8` stores, and keep them.

    Biases, layer norms and gates can then be trained to make up for the rounding.
    """
    from s2sent.model.export.int8 import rounding  # loads what exports

    for parameter in [*rounding.round_matrices(encoder[0]), *rounding.round_projections(encoder)]:
        parameter.requires_grad = False


def _continues(selector: S2SentSelector, recipe: Recipe, folder: str) -> bool:
    """Whether the selector took the weights of one like it, which the backbone's checkpoint has.

    A recipe that says how the gate starts gets a new one, and one that adds matrices, or blocks to
    what they read, gets these anew. One without exits goes on with the gate of full depth.
    """
    if recipe.initial_bias or recipe.static or not has_selector(Path(folder)):
        return False
    before = find_selector(load_encoder(folder))
    if before is None:
        return False
    if selector.config == replace(
        before.config, exits=(), project_exits=False, project_blocks=False
    ):
        state = before.state_dict()
        selector.load_state_dict({name: state[name] for name in selector.state_dict()})
        return True
    fused_alone = replace(selector.config, project_blocks=False)
    gates_alone = replace(fused_alone, project_exits=False)
    if before.config not in (selector.config, fused_alone, gates_alone):
        return False
    same = before.config == selector.config
    state = before.state_dict()
    if not same:  # matrices of another shape, or none
        state = {name: value for name, value in state.items() if not name.startswith("projections")}
    selector.load_state_dict(state, strict=same)
    return True


def _require_depths(selector: S2SentSelector | None, recipe: Recipe, encoder: Any) -> None:
    if recipe.elastic is None:
        return
    try:
        blocks = encoder[0].auto_model.config.num_hidden_layers
        require_exits(selector, recipe.elastic.depths, blocks)
    except CheckpointError as error:
        raise ConfigError(f"[elastic] depths: {error}") from None


def _start_gates(selector: S2SentSelector, recipe: Recipe) -> None:
    """Set the first weights as the recipe says: ``initial_bias`` at full depth, ``static`` at all.

    The gates of exits start from the mean of their blocks.
    """
    exits = cast(list[S2SentSelector], [*selector.exits.values()])
    for each, bias in [(selector, recipe.initial_bias), *((own, 0.0) for own in exits)]:
        if bias or recipe.static:
            _start_gate(each, bias, recipe.static)


def _start_gate(selector: S2SentSelector, bias: float, static: str | None) -> None:
    gate = selector.spatial_selection
    if gate is None or gate.expand.bias is None:
        raise ConfigError("[selector] initial_bias and static need a gate with biases.")
    per_block = gate.expand.bias.detach().view(selector.config.num_heads, -1)  # [N, D]
    per_block.fill_(-bias)
    per_block[-1] = bias
    if static:
        gate.requires_grad_(requires_grad=False)
        nn.init.zeros_(gate.expand.weight)  # the output is then the bias, whatever the input
        gate.expand.bias.requires_grad_()
    if static == "blocks":
        # Equal first values and equal gradients keep the features of a block equal.
        gate.expand.bias.register_hook(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            lambda grad: (
                grad.view_as(per_block).mean(1, keepdim=True).expand_as(per_block).flatten()
            )
        )
