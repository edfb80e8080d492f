"""A frozen backbone runs once for each row of tokens; training on what it gave is the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from s2sent.model.network.encoder import load_encoder
from s2sent.training.evaluation.depths.embeddings import encode_exits
from s2sent.training.files.arrays import PAGE_BYTES
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.fit.train import train
from s2sent.training.loop.lookup import cached_backbone
from s2sent.training.objectives.sfp import TwoStageLoss
from s2sent.training.recipe.elastic import Elastic
from s2sent.training.recipe.objectives import SFP, Distillation, PairDistillation, SimCSE
from s2sent.training.recipe.recipe import BackboneConfig, Recipe
from tests.support.tiny import tiny_decoder
from tests.support.tiny_data import SENTENCES
from tests.support.tiny_recipes import QUICK, with_objective

TEXTS = [*SENTENCES[:6], "a dog"]
FROZEN = replace(QUICK, freeze_backbone=True)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_decoder(tmp_path_factory.mktemp("lookup") / "tiny")


def frozen(recipe: Recipe, decoder: Path, kind: str) -> Recipe:
    """The recipe on a frozen encoder, or on a frozen decoder with a template."""
    recipe = replace(recipe, training=FROZEN)
    if kind == "encoder":
        return replace(recipe, objective=PairDistillation(teachers=[recipe.backbone.name]))
    backbone = BackboneConfig(
        name=str(decoder), max_seq_length=32, template="sfp", pooling="last_token"
    )
    selector = {"preset": "decoder-prefix", "reduction": 4}
    return replace(recipe, backbone=backbone, selector=selector, objective=SFP())


kinds = pytest.mark.parametrize("kind", ["encoder", "decoder"])


@kinds
def test_vectors_are_the_same_and_the_backbone_runs_once_a_row(
    recipe: Recipe, decoder: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between runs; a text in another batch is another padding of the same row."""
    torch.manual_seed(0)
    encoder: Any = new_encoder(frozen(recipe, decoder, kind))
    expected = encoder.encode(TEXTS)
    with cached_backbone(encoder, tmp_path) as states:
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5)
        assert len(states) == len(TEXTS)
    with cached_backbone(encoder, tmp_path) as states:
        monkeypatch.setattr(encoder[0].auto_model, "forward", lambda **_: pytest.fail("again"))
        np.testing.assert_allclose(encoder.encode(TEXTS[3:]), expected[3:], atol=1e-5)
    monkeypatch.undo()
    np.testing.assert_array_equal(encoder.encode(TEXTS), expected)


def test_exits_read_blocks_that_are_cached_too(recipe: Recipe, tmp_path: Path) -> None:
    """Depth 2 fuses blocks 1 and 2, which full depth, of 2 to 4, does not read all of."""
    torch.manual_seed(0)
    sizes = Elastic(depths=[2, 3], dimensions=[8])
    encoder = new_encoder(replace(recipe, training=FROZEN, elastic=sizes))
    expected = encode_exits(encoder, TEXTS, [2, 3])
    for _ in range(2):
        with cached_backbone(encoder, tmp_path):
            found = encode_exits(encoder, TEXTS, [2, 3])
        for depth, rows in expected.items():
            np.testing.assert_allclose(found[depth], rows, atol=1e-5)


def test_what_has_dropout_is_computed_each_time(
    recipe: Recipe, decoder: Path, data: Path, tmp_path: Path
) -> None:
    """Its two views of a text differ by it alone."""
    pairs = frozen(recipe, decoder, "encoder")
    simcse = replace(pairs, objective=SimCSE(), training=replace(FROZEN, steps=1))
    train(simcse, data, tmp_path / "out", cache=tmp_path / "cache")
    assert not [*tmp_path.glob("cache/states-*")]


def test_distillation_without_dropout_is_cached(recipe: Recipe, data: Path, tmp_path: Path) -> None:
    one_view = Distillation(teachers=[recipe.backbone.name], contrastive_weight=0, dropout=False)
    recipe = replace(with_objective(recipe, one_view), training=replace(FROZEN, steps=1))
    train(recipe, data, tmp_path / "out", cache=tmp_path / "cache")
    assert [*tmp_path.glob("cache/states-*.sqlite")]


def test_a_frozen_backbone_of_sfp_has_no_dropout_cached_or_not(
    recipe: Recipe, tmp_path: Path
) -> None:
    """Else --cache would train on something else."""
    decoder = tiny_decoder(tmp_path / "tiny", "gpt2")  # which has dropout
    encoder: Any = new_encoder(frozen(recipe, decoder, "decoder"))
    loss = TwoStageLoss(encoder)
    encoder.train()
    batch = encoder.preprocess(TEXTS, task="view_1")
    with torch.no_grad():
        (one, _), (two, _) = loss.embed(dict(batch)), loss.embed(dict(batch))
    assert torch.equal(one, two)
    assert encoder[1].training


def test_two_processes_share_states(recipe: Recipe, decoder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    one: Any = new_encoder(frozen(recipe, decoder, "encoder"))
    torch.manual_seed(0)
    two: Any = new_encoder(frozen(recipe, decoder, "encoder"))
    expected = one.encode(TEXTS)
    with cached_backbone(one, tmp_path) as states:
        one.encode(TEXTS[:3])
        with cached_backbone(two, tmp_path) as others:
            assert len(others) == 3
            np.testing.assert_allclose(two.encode(TEXTS[::-1]), expected[::-1], atol=1e-5)
        assert len(states) == len(TEXTS)
        np.testing.assert_allclose(one.encode(TEXTS), expected, atol=1e-5)
    assert len([*tmp_path.iterdir()]) == 1


def test_rows_without_room_are_computed_each_time(
    recipe: Recipe, decoder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    encoder: Any = new_encoder(frozen(recipe, decoder, "encoder"))
    long = [f"{text} {' '.join(SENTENCES[:9])}" for text in TEXTS]
    expected = encoder.encode(long)
    with cached_backbone(encoder, tmp_path, max_bytes=4 * PAGE_BYTES) as states:
        for _ in range(2):
            np.testing.assert_allclose(encoder.encode(long, batch_size=2), expected, atol=1e-5)
        assert 0 < len(states) < len(TEXTS)
    assert caplog.text.count("the cache is full: what it lacks is computed each time") == 1


@kinds
def test_training_ends_with_the_same_checkpoint(
    recipe: Recipe, data: Path, decoder: Path, tmp_path: Path, kind: str
) -> None:
    """With the states kept and without; the random weights have no dropout to differ by."""
    recipe = frozen(recipe, decoder, kind)
    outcomes = [
        train(recipe, data, tmp_path / name, cache=cache)
        for name, cache in (("plain", None), ("kept", tmp_path / "cache"))
    ]
    assert outcomes[0].dev == pytest.approx(outcomes[1].dev, abs=0.01)
    assert len(list((tmp_path / "cache").glob("states-*.sqlite"))) == 1
    plain, kept = (load_encoder(tmp_path / name).encode(TEXTS) for name in ("plain", "kept"))
    np.testing.assert_allclose(np.asarray(plain), np.asarray(kept), atol=1e-3)
