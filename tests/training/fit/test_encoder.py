"""The encoder that training starts from: the start of its gate, and a frozen backbone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from s2sent.model.network.encoder import get_selector, load_encoder
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.training.errors import ConfigError, EncoderError
from s2sent.training.evaluation.encoders import open_encoder
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.fit.train import train
from s2sent.training.recipe.elastic import Elastic
from s2sent.training.recipe.recipe import (
    BackboneConfig,
    Recipe,
)
from tests.support.tiny import tiny_decoder
from tests.support.tiny_recipes import QUICK


@pytest.mark.parametrize(("kind", "distinct"), [("blocks", 3), ("features", 96)])
def test_a_static_gate_learns_weights_that_do_not_see_the_input(
    recipe: Recipe, data: Path, tmp_path: Path, kind: str, distinct: int
) -> None:
    """One weight per block, or one per block and feature, for whatever text; the control of X1."""
    train(replace(recipe, selector={"reduction": 4, "static": kind}), data, tmp_path / "out")
    gate = get_selector(load_encoder(tmp_path / "out")).spatial_selection
    assert gate is not None
    bias = gate.expand.bias.detach()
    assert len(set(bias.tolist())) == distinct
    one, two = gate(torch.zeros(32), 3), gate(torch.full((32,), 9.0), 3)
    assert torch.equal(one, two)


def test_a_gate_can_start_near_the_last_block(recipe: Recipe) -> None:
    encoder = new_encoder(replace(recipe, selector={"reduction": 4, "initial_bias": 3.0}))
    gate = get_selector(encoder).spatial_selection
    assert gate is not None
    weights = gate(torch.zeros(32), 3).mean(-1)
    np.testing.assert_allclose(weights.detach(), [0.2237, 0.2237, 0.5527], atol=1e-3)


def test_a_frozen_backbone_does_not_move(recipe: Recipe, data: Path, tmp_path: Path) -> None:
    recipe = replace(recipe, training=replace(QUICK, freeze_backbone=True))
    untrained = new_encoder(recipe)
    train(recipe, data, tmp_path / "out")
    trained = load_encoder(tmp_path / "out")
    for name, value in untrained[0].state_dict().items():
        assert torch.equal(trained[0].state_dict()[name], value), name
    expand = "spatial_selection.expand.weight"
    assert not torch.equal(trained[1].state_dict()[expand], untrained[1].state_dict()[expand])


def test_first_blocks_that_are_frozen_do_not_move(
    recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    """Embeddings and blocks 1 to 3 stay bit for bit; every matrix of block 4, the last, moves."""
    recipe = replace(recipe, training=replace(QUICK, freeze_blocks=3))
    untrained = new_encoder(recipe)[0].state_dict()
    train(recipe, data, tmp_path / "out")
    trained = load_encoder(tmp_path / "out")[0].state_dict()
    moved = {name for name, value in untrained.items() if not torch.equal(trained[name], value)}
    last = {name for name in untrained if "layer.3." in name}
    assert moved <= last
    assert {name for name in last if name.endswith("dense.weight")} <= moved


def test_a_decoder_without_a_template_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    """It would fail later, since nothing says how texts are padded."""
    backbone = BackboneConfig(name=str(tiny_decoder(tmp_path / "decoder")))
    with pytest.raises(ConfigError, match=r"decoder has no padding token.* Set template"):
        new_encoder(replace(recipe, backbone=backbone, selector=None))


def test_freezing_every_block_is_refused(recipe: Recipe) -> None:
    with pytest.raises(ConfigError, match=r"freeze_blocks = 4 leaves none .* 4 .* choose 1 to 3"):
        new_encoder(replace(recipe, training=replace(QUICK, freeze_blocks=4)))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"freeze_blocks": -1}, "freeze_blocks = -1 must be at least 0"),
        ({"freeze_blocks": 1, "freeze_backbone": True}, "leave freeze_blocks out"),
        ({"freeze_blocks": 1, "lora_rank": 4}, "which freeze_blocks forbids"),
    ],
)
def test_freezing_that_cannot_be_is_refused(options: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(QUICK, **options)  # type: ignore[arg-type]  # of several types


def test_a_selector_goes_on_from_one_like_it_in_the_checkpoint(
    recipe: Recipe, tmp_path: Path
) -> None:
    """A gate that is built or started in another way begins anew."""
    first = new_encoder(recipe)
    first.save(str(tmp_path / "first"), create_model_card=False)
    name = replace(recipe.backbone, name=str(tmp_path / "first"))
    weights = get_selector(first).state_dict()["spatial_selection.expand.weight"]
    for selector, goes_on in (
        ({"reduction": 4}, True),
        ({"reduction": 4, "activation": "tanh"}, False),
        ({"reduction": 4, "initial_bias": 3.0}, False),
    ):
        second = new_encoder(replace(recipe, backbone=name, selector=selector))
        found = get_selector(second).state_dict()["spatial_selection.expand.weight"]
        assert torch.equal(found, weights) == goes_on


def test_a_recipe_without_exits_goes_on_with_the_gate_of_full_depth(
    recipe: Recipe, tmp_path: Path
) -> None:
    """The gates and matrices of exits are left behind."""
    elastic = Elastic(depths=[2], dimensions=[8], project=True, project_blocks=True)
    first = new_encoder(replace(recipe, elastic=elastic))
    first.save(str(tmp_path / "first"), create_model_card=False)
    name = replace(recipe.backbone, name=str(tmp_path / "first"))
    found = get_selector(new_encoder(replace(recipe, backbone=name))).state_dict()
    weights = get_selector(first).state_dict()
    assert set(found) < set(weights)
    assert all(torch.equal(value, weights[key]) for key, value in found.items())


def test_a_decoder_without_a_template_is_told_so_not_its_name_or_selector(
    recipe: Recipe, tmp_path: Path
) -> None:
    decoder = str(tiny_decoder(tmp_path / "decoder"))
    with pytest.raises(ConfigError, match=r"^The tokenizer of .* Set template"):
        new_encoder(replace(recipe, backbone=BackboneConfig(name=decoder)))
    with pytest.raises(EncoderError, match=r"^The tokenizer of .* Set template"):
        open_encoder(decoder)
    with pytest.raises(
        CheckpointError, match=r"backbone alone, .* no padding token, train it .* and a template"
    ):
        load_encoder(decoder)


@pytest.mark.parametrize("selector", [None, {"reduction": 4}])
def test_a_backbone_that_cannot_embed_is_a_sentence(
    recipe: Recipe, tmp_path: Path, selector: dict[str, int] | None
) -> None:
    folder = shutil.copytree(recipe.backbone.name, tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text()) | {"hidden_act": -1}
    (folder / "config.json").write_text(json.dumps(config))
    odd = replace(recipe, backbone=replace(recipe.backbone, name=str(folder)), selector=selector)
    with pytest.raises(CheckpointError, match="odd cannot embed a text .*: correct its config"):
        new_encoder(odd)
