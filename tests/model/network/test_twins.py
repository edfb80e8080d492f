"""Twin encoders: the sum of two towers, each of which stays a checkpoint of its own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from s2sent.model.network.encoder import (
    build_encoder,
    build_plain_encoder,
    load_encoder,
)
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.twin_encoder import TOWERS
from s2sent.model.network.twins import (
    get_twins,
    is_twin_checkpoint,
    join_towers,
    load_twin_encoder,
)
from tests.support.tiny import tiny_backbone
from tests.support.tiny_twins import tiny_twins

TEXTS = ["a cat", "two dogs run in the street at night", "he reads"]


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("backbones")

    def backbone(name: str, *arguments: Any, **options: Any) -> Path:
        known = folder / name
        return known if known.exists() else tiny_backbone(known, *arguments, **options)

    return backbone


def test_the_embedding_is_the_sum_of_what_the_towers_give_alone(tmp_path: Path) -> None:
    """Not normalised before it is summed; in a batch and after being loaded again."""
    twins = tiny_twins(tmp_path)
    alone = [load_encoder(tmp_path / f"{name}.checkpoint") for name in TOWERS]
    vectors = [get_twins(twins).towers[place].encode(TEXTS) for place in (0, 1)]
    for vector, tower in zip(vectors, alone, strict=True):
        unit = vector / np.linalg.norm(vector, axis=1, keepdims=True)
        np.testing.assert_allclose(unit, tower.encode(TEXTS), atol=1e-6)
        assert np.ptp(np.linalg.norm(vector, axis=1)) > 1e-3
    total = vectors[0] + vectors[1]
    expected = total / np.linalg.norm(total, axis=1, keepdims=True)
    np.testing.assert_allclose(twins.encode(TEXTS), expected, atol=1e-6)
    twins.save(str(tmp_path / "twins"))
    assert is_twin_checkpoint(tmp_path / "twins")
    np.testing.assert_allclose(
        load_twin_encoder(tmp_path / "twins").encode(TEXTS), expected, atol=1e-6
    )


def test_each_tower_of_a_saved_twin_is_a_checkpoint(tmp_path: Path) -> None:
    twins = tiny_twins(tmp_path)
    twins.save(str(tmp_path / "twins"))
    for name, tower in zip(TOWERS, get_twins(twins).towers, strict=True):
        saved = load_encoder(tmp_path / "twins" / name)
        np.testing.assert_array_equal(saved.encode(TEXTS), tower.encode(TEXTS))


def test_twins_read_as_many_tokens_as_both_do(backbones: Callable[..., Path]) -> None:
    long = build_plain_encoder(backbones("one"), max_seq_length=64)
    short = build_plain_encoder(backbones("two", seed=1), max_seq_length=8)
    twins = join_towers(long, short, normalize=True)
    assert twins.max_seq_length == 8
    twins.max_seq_length = 5
    assert twins.preprocess(["a " * 30])["input_ids"].shape == (1, 5)
    assert {tower.max_seq_length for tower in get_twins(twins).towers} == {5}


def test_towers_that_do_not_add_up_are_refused(backbones: Callable[..., Path]) -> None:
    one = build_plain_encoder(backbones("one"))
    config = SelectorConfig(width=32, num_blocks=3, reduction=4)
    others = {
        "width, 32 and 48": build_plain_encoder(backbones("wide", width=48)),
        "tokenizer, sha256": build_plain_encoder(backbones("roberta", "roberta")),
        "pooling, mean and cls": build_plain_encoder(backbones("one"), pooling="cls"),
        "selector, None and": build_encoder(backbones("one"), config),
        "backbone, bert and distilbert": build_plain_encoder(backbones("other", "distilbert")),
    }
    for says, other in others.items():
        with pytest.raises(CheckpointError, match=f"differ in their {says}.*: train both"):
            join_towers(one, other, normalize=True)


def test_a_prompt_of_both_towers_is_the_twins(
    backbones: Callable[..., Path], tmp_path: Path
) -> None:
    towers = [build_plain_encoder(backbones(name)) for name in ("one", "two")]
    for tower in towers:
        tower.prompts, tower.default_prompt_name = {"query": "red dog: "}, "query"
    twins = join_towers(*towers, normalize=True)
    expected = twins.encode(TEXTS)
    twins.save(str(tmp_path / "twins"))
    np.testing.assert_array_equal(load_twin_encoder(tmp_path / "twins").encode(TEXTS), expected)
    towers[1].prompts = {"query": "two cats: "}
    with pytest.raises(CheckpointError, match=r"differ in their prompts.*red dog.*two cats"):
        join_towers(*towers, normalize=True)


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    twins = tiny_twins(tmp_path)
    twins.save(str(tmp_path / "twins"))
    file = tmp_path / "twins" / "modules.json"
    entries = json.loads(file.read_text())
    file.write_text(json.dumps([*entries, {"type": "somewhere.Code", "path": ""}]))
    with pytest.raises(CheckpointError, match=r"holds .*somewhere\.Code: twins are"):
        load_twin_encoder(tmp_path / "twins")
    file.write_text(json.dumps(entries))
    shutil.rmtree(tmp_path / "twins" / "tower_b")
    with pytest.raises(CheckpointError, match="tower_b.*modules.json cannot be read"):
        load_twin_encoder(tmp_path / "twins")
    with pytest.raises(TypeError, match="has no towers"):
        get_twins(load_encoder(tmp_path / "tower_a.checkpoint"))
    assert not is_twin_checkpoint(tmp_path / "tower_a.checkpoint")


def test_a_gradient_reaches_both_towers(tmp_path: Path) -> None:
    twins: Any = tiny_twins(tmp_path)
    twins(twins.preprocess(TEXTS))["sentence_embedding"].sum().backward()
    for tower in get_twins(twins).towers:
        grads = [p.grad for p in tower.parameters() if p.grad is not None]
        assert torch.stack([grad.abs().max() for grad in grads]).max() > 0
