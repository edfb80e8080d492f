"""The average of checkpoints: the mean of their weights, and nothing that does not belong."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from s2sent.model.network.encoder import find_selector, load_encoder
from s2sent.training.average import average_checkpoints, interpolate_to_backbone
from s2sent.training.errors import ConfigError, EncoderError
from s2sent.training.evaluation.encoders import open_torch
from s2sent.training.join import join_checkpoints
from s2sent.training.recipe.objectives import SimCSE
from s2sent.training.recipe.recipe import BackboneConfig, CorpusPart, Recipe, TrainingConfig
from s2sent.training.train import train
from tests.support.tiny import tiny_backbone
from tests.support.tiny_data import tiny_data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of a recipe, one run without a selector, and the data."""
    folder = tmp_path_factory.mktemp("runs")
    recipe = Recipe(
        seed=1,
        backbone=BackboneConfig(name=str(tiny_backbone(folder / "tiny")), max_seq_length=32),
        corpus=[CorpusPart(source="captions")],
        objective=SimCSE(),
        training=TrainingConfig(steps=2, batch_size=8, eval_every=2, learning_rate=1e-3),
        selector={"reduction": 4},
    )
    data = tiny_data(folder / "data")
    train(recipe, data, folder / "one")
    train(replace(recipe, seed=2), data, folder / "two")
    train(replace(recipe, selector=None), data, folder / "plain")
    return folder


def test_every_weight_is_the_mean_and_the_record_tells_the_parts(
    runs: Path, tmp_path: Path
) -> None:
    average_checkpoints([runs / "one", runs / "two"], tmp_path / "out", runs / "data")
    one, two = (load_encoder(runs / name).state_dict() for name in ("one", "two"))
    for name, value in load_encoder(tmp_path / "out").state_dict().items():
        torch.testing.assert_close(value, (one[name] + two[name]) / 2)
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert [part["seed"] for part in record["average_of"]] == [1, 2]
    assert record["dev"]["score"] != record["average_of"][0]["dev"]["score"]


def test_what_is_no_average_is_refused_by_name(runs: Path, tmp_path: Path) -> None:
    one, out = runs / "one", tmp_path / "out"
    with pytest.raises(ConfigError, match="1 checkpoint is no average"):
        average_checkpoints([one], out, runs / "data")
    with pytest.raises(ConfigError, match="exists already"):
        average_checkpoints([one, one], tmp_path, runs / "data")
    with pytest.raises(EncoderError, match="plain is not built as .*one is"):
        average_checkpoints([one, runs / "plain"], out, runs / "data")
    shutil.copytree(runs / "tiny", tmp_path / "backbone")
    with pytest.raises(
        EncoderError, match="backbone alone: name a checkpoint that s2sent-train fit"
    ):
        average_checkpoints([one, tmp_path / "backbone"], out, runs / "data")
    assert not out.exists()


def test_transformer_weights_move_to_the_backbone_and_the_selector_stays(
    runs: Path, tmp_path: Path
) -> None:
    backbone = str(runs / "tiny")
    interpolate_to_backbone(runs / "one", backbone, 0.25, tmp_path / "out", runs / "data")
    before, after = (load_encoder(runs / "one"), load_encoder(tmp_path / "out"))
    start = dict(open_torch(backbone)[0].get_submodule("auto_model").named_parameters())
    moved = dict(after[0].get_submodule("auto_model").named_parameters())
    for name, weight in before[0].get_submodule("auto_model").named_parameters():
        torch.testing.assert_close(moved[name], 0.75 * weight + 0.25 * start[name])
    assert any(not weight.equal(moved[name]) for name, weight in start.items())
    selectors = find_selector(before), find_selector(after)
    assert selectors[0] is not None
    assert selectors[1] is not None
    torch.testing.assert_close(selectors[0].state_dict(), selectors[1].state_dict())
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert (record["backbone_share"], record["began_from"]["seed"]) == (0.25, 1)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, 2.0, float("nan")])
def test_a_share_that_is_no_way_between_is_refused(
    runs: Path, tmp_path: Path, share: float
) -> None:
    with pytest.raises(ConfigError, match=r"share is .*: it must be between 0 and 1"):
        interpolate_to_backbone(
            runs / "one", str(runs / "tiny"), share, tmp_path / "out", runs / "data"
        )


def test_a_backbone_of_another_shape_is_refused(runs: Path, tmp_path: Path) -> None:
    other = tiny_backbone(tmp_path / "other", num_layers=5)
    with pytest.raises(EncoderError, match="other does not have the shape of .*one"):
        interpolate_to_backbone(runs / "one", str(other), 0.5, tmp_path / "out", runs / "data")
    assert not (tmp_path / "out").exists()


def test_twins_are_refused_with_what_to_name(runs: Path, tmp_path: Path) -> None:
    twins, tiny = tmp_path / "twins", str(runs / "tiny")
    join_checkpoints(str(runs / "one"), str(runs / "two"), twins)
    with pytest.raises(EncoderError, match="twins is twins.*: name one of its towers"):
        interpolate_to_backbone(twins, tiny, 0.5, tmp_path / "out", runs / "data")
