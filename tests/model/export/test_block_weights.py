"""The graph's output of block weights gives what the selector computes in torch, at every depth."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.network.encoder import build_plain_encoder, get_selector, load_encoder
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.few import FEW
from tests.support.tiny import tiny_backbone

TEXTS = ["the cat sings", "a", "two happy dogs read books in the green city at night " * 3, "if no"]


def by_torch(checkpoint: Path, depth: int | None) -> NDArray[np.float32]:
    """The selector's weights [n, blocks, dim], each text by itself."""
    encoder = load_encoder(checkpoint)
    selector = get_selector(encoder)
    rows = []
    for text in TEXTS:
        inputs = encoder.tokenizer(text, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            states = encoder[0].get_submodule("auto_model")(**inputs).hidden_states
            blocks = selector.select_blocks(states, depth)
            own = selector if depth is None else selector.at(depth)
            weights = own.block_weights(blocks, inputs["attention_mask"])
        rows.append(weights[:, 0, 0].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("depth", [None, 4, 2])
def test_weights_are_those_of_torch(
    exits_checkpoint: Path, exits_artifact: Artifact, depth: int | None
) -> None:
    encoder = OnnxEncoder(exits_artifact)
    sequences = [row.input_ids for row in encoder.tokenizer.tokenize(TEXTS)]
    weights = encoder.block_weights(sequences, depth=depth)
    np.testing.assert_allclose(weights, by_torch(exits_checkpoint, depth), atol=1e-5)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
    assert weights.std() > 1e-3, "weights that are all alike would prove nothing"
    assert weights.shape[1] == len(exits_artifact.manifest.fused_blocks(depth))


def test_a_gate_that_serves_every_depth_has_the_weights_of_torch(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    options = replace(FEW, depths=(3,))
    encoder = OnnxEncoder(export_checkpoint(tiny_checkpoint, tmp_path / "artifact", options))
    sequences = [row.input_ids for row in encoder.tokenizer.tokenize(TEXTS)]
    for depth in (None, 3):
        weights = encoder.block_weights(sequences, depth=depth)
        np.testing.assert_allclose(weights, by_torch(tiny_checkpoint, depth), atol=1e-5)


def test_an_encoder_without_a_selector_gives_none(tmp_path: Path) -> None:
    plain = build_plain_encoder(tiny_backbone(tmp_path / "backbone"), max_seq_length=64)
    plain.save(str(tmp_path / "checkpoint"))
    artifact = export_checkpoint(tmp_path / "checkpoint", tmp_path / "artifact", FEW)
    encoder = OnnxEncoder(artifact)
    assert not encoder.has_block_weights
    with pytest.raises(ValueError, match="has no block_weights"):
        encoder.block_weights([[2, 3]])


@pytest.mark.parametrize(
    ("choice", "depth", "numbers"),
    [("last", None, [2, 3, 4]), ("last", 2, [1, 2]), ("skip_last", None, [1, 2, 3])],
)
def test_the_manifest_knows_which_blocks_are_fused(
    tiny_artifact: Artifact, choice: str, depth: int | None, numbers: list[int]
) -> None:
    manifest = tiny_artifact.manifest
    assert manifest.selector is not None
    manifest.selector["block_choice"] = choice
    assert [*manifest.fused_blocks(depth)] == numbers
    manifest.selector["block_choice"] = "last"
