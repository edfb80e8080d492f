"""A hub id is treated like the folder that it stands for, by every command."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.options import ExportOptions
from s2sent.model.network.encoder import build_encoder, get_selector, load_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.training.__main__ import main
from s2sent.training.backbones import resolve
from s2sent.training.evaluation.encoders import open_encoder
from s2sent.training.evaluation.sts import TASKS
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.fit.train import train
from s2sent.training.recipe.recipe import Recipe
from tests.support.hub_cache import put_into_cache, use_cache

NAME = "someone/fused"
TEXTS = ["the dog", "two men"]


@pytest.fixture(scope="module")
def fused(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a selector of random weights and a record."""
    encoder = build_encoder(backbone, SelectorConfig(width=32, reduction=4, exits=(2,)))
    generator = torch.Generator().manual_seed(1)
    for parameter in get_selector(encoder).parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=generator)
    folder = tmp_path_factory.mktemp("fused") / "fused"
    encoder.save(str(folder))
    (folder / "training.json").write_text(json.dumps({"backbone": {"name": "the first one"}}))
    return folder


@pytest.fixture
def on_hub(fused: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    use_cache(tmp_path / "hub", monkeypatch)
    return put_into_cache(tmp_path / "hub", NAME, fused)


def test_the_folder_is_found_and_opened(on_hub: str, fused: Path, tmp_path: Path) -> None:
    assert resolve(on_hub).startswith(str(tmp_path / "hub"))
    expected = load_encoder(fused).encode(TEXTS)
    np.testing.assert_array_equal(load_encoder(on_hub).encode(TEXTS), expected)
    np.testing.assert_array_equal(open_encoder(on_hub)(TEXTS), expected)


def test_an_export_from_python_keeps_the_record(on_hub: str, tmp_path: Path) -> None:
    artifact = export_checkpoint(on_hub, tmp_path / "artifact", ExportOptions(sentences=TEXTS))
    assert artifact.manifest.training == {"backbone": {"name": "the first one"}}


def test_a_model_that_the_cache_has_not_is_a_sentence(
    on_hub: str, refusal: Callable[..., str], tmp_path: Path
) -> None:
    del on_hub
    for command in (["export", "someone/else", tmp_path / "out"], ["join", NAME, "no", "out"]):
        assert "is no folder here and could not be fetched from the hub" in refusal(*command)


def test_training_goes_on_with_the_selector_of_a_hub_id(
    on_hub: str, fused: Path, recipe: Recipe, data: Path, tmp_path: Path
) -> None:
    started = [
        new_encoder(replace(recipe, backbone=replace(recipe.backbone, name=name)))
        for name in (on_hub, str(fused))
    ]
    for mine, theirs in zip(started[0].parameters(), started[1].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    trained = load_encoder(fused)
    full = get_selector(started[0]).state_dict()
    assert all(torch.equal(full[key], get_selector(trained).state_dict()[key]) for key in full)
    train(replace(recipe, backbone=replace(recipe.backbone, name=on_hub)), data, tmp_path / "out")
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["backbone"] == {"name": "the first one"}


COMMANDS = {
    "export": "export NAME OUT",
    "evaluate": "evaluate NAME --data DATA --dev-only",
    "join": "join NAME FUSED OUT",
    "report": "report NAME --data DATA --output OUT",
    "depths": "depths NAME --data DATA --dev-only",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_takes_a_hub_id(
    command: str, on_hub: str, fused: Path, data: Path, tmp_path: Path
) -> None:
    tasks = tmp_path / "data"  # seven copies of one task, whose sentences are not those of dev
    shutil.copytree(data, tasks)
    other = (data / "sts" / "stsb-dev.tsv").read_text().replace("\ta", "\tnot a")
    for file in TASKS.values():
        (tasks / "sts" / file).write_text(other)
    words = {"NAME": on_hub, "FUSED": str(fused), "DATA": str(tasks), "OUT": str(tmp_path / "out")}
    with pytest.raises(SystemExit, match="0"):
        main([words.get(word, word) for word in COMMANDS[command].split()])


@pytest.mark.parametrize("has_safetensors", [True, False])
def test_only_weights_and_settings_are_fetched(
    has_safetensors: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No code, nothing of other runtimes, and no weights twice."""
    from huggingface_hub.utils._paths import filter_repo_objects

    wanted = ["modules.json", "1_S2SentSelector/model.safetensors", "vocab.txt", "spiece.model"]
    wanted += ["2_Dense/pytorch_model.bin"]
    other = ["modeling_s2sent.py", "onnx/model.onnx", "model.h5", "openvino/model.bin", "a.pkl"]
    (wanted if has_safetensors else other).append("model.safetensors")
    (other if has_safetensors else wanted).append("pytorch_model.bin")
    hub = [name for name in [*wanted, *other] if has_safetensors or name != "model.safetensors"]
    fetched: set[str] = set()

    def fetch(_name: str, **options: Any) -> str:
        fetched.update(filter_repo_objects(hub, **options))
        for name in fetched:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    resolve(NAME)
    assert fetched == {*wanted}
