"""Training changes weights alone: every setting of the backbone and tokenizer stays as it came."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from s2sent.training.errors import Interrupted
from s2sent.training.files.record import RECORD_FILE
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.fit.train import train
from s2sent.training.recipe.objectives import SimCSE
from s2sent.training.recipe.recipe import BackboneConfig, Recipe
from tests.support.folder_contents import contents
from tests.support.interruption import interrupted_at
from tests.support.tiny import tiny_backbone, tiny_decoder
from tests.support.tiny_recipes import QUICK, with_objective

# What training writes itself: its record, and a last module that makes lengths 1.
WRITTEN = {"modules.json", RECORD_FILE, "3_Normalize/config.json"}


class Whole(NamedTuple):
    """A recipe, and the files that an uninterrupted run of it writes."""

    recipe: Recipe
    files: dict[str, bytes]


def other_ids(folder: Path, **ids: int) -> Path:
    """The backbone with other ids of special tokens in its configuration than its tokenizer's."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ids))
    return folder


def settings(folder: Path) -> dict[str, bytes]:
    return {
        name: content
        for name, content in contents(folder).items()
        if not name.endswith(".safetensors") and name not in WRITTEN
    }


def assert_settings_kept(recipe: Recipe, folder: Path) -> None:
    start = folder.with_name("start")
    new_encoder(recipe).save(str(start), create_model_card=False)
    assert settings(folder) == settings(start)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "electra", "llama"])
def test_a_backbone_keeps_its_ids_where_its_tokenizer_has_others(
    recipe: Recipe, data: Path, tmp_path: Path, family: str
) -> None:
    """RoBERTa-like ones count positions from the padding's id."""
    causal = family == "llama"
    made = tiny_decoder(tmp_path / family) if causal else tiny_backbone(tmp_path / family, family)
    name = str(other_ids(made, pad_token_id=7, bos_token_id=5, eos_token_id=6))
    backbone = BackboneConfig(name=name, max_seq_length=32)
    if causal:
        backbone = replace(backbone, template="prompteol", pooling="last_token")
    selector = {"reduction": 4} | ({"preset": "decoder"} if causal else {})
    recipe = replace(with_objective(recipe, SimCSE()), backbone=backbone, selector=selector)
    train(replace(recipe, training=replace(QUICK, steps=2)), data, tmp_path / "out")
    assert_settings_kept(recipe, tmp_path / "out")


@pytest.fixture(scope="module")
def whole(recipe: Recipe, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A recipe whose backbone has another id for padding, and a run of it without a break."""
    folder = tmp_path_factory.mktemp("whole")
    name = other_ids(tiny_backbone(folder / "roberta", "roberta"), pad_token_id=7)
    recipe = replace(recipe, backbone=BackboneConfig(name=str(name), max_seq_length=32))
    train(recipe, data, folder / "out")
    return Whole(recipe, contents(folder / "out"))


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_resumed_run_keeps_them_too(
    whole: Whole,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_the_end: bool,
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    if at_the_end:
        with monkeypatch.context() as patch:
            patch.setattr("s2sent.training.fit.train._save", killed)
            with pytest.raises(KeyboardInterrupt):
                train(whole.recipe, data, tmp_path / "out")
    else:
        with interrupted_at(3), pytest.raises(Interrupted):
            train(whole.recipe, data, tmp_path / "out")
    train(whole.recipe, data, tmp_path / "out", resume=True)
    assert contents(tmp_path / "out") == whole.files
    assert_settings_kept(whole.recipe, tmp_path / "out")
