"""An artifact is given products of int8 without its checkpoint, or stays what it was."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.manifest import MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import seal
from s2sent.model.export import graph as graph_of
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.conversion import ConversionError
from s2sent.model.export.int8 import conversion
from s2sent.model.export.int8.conversion import convert_to_int8
from s2sent.model.export.options import Precision
from s2sent.model.network.encoder import build_encoder, build_plain_encoder
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.training.__main__ import main
from tests.support.few import FEW
from tests.support.operators_run import operators_run
from tests.support.tiny import tiny_backbone

TEXTS = ["the cat sings", "a", "two happy dogs read books in the green city at night " * 3, "a car"]


@pytest.mark.parametrize("precision", ["fp32", "weight-int8"])
def test_products_are_of_int8_and_vectors_near_those_of_the_source(
    tiny_checkpoint: Path, tmp_path: Path, precision: Precision
) -> None:
    options = replace(FEW, precision=precision, name="tiny", scores={"STS-B": 80.0})
    source = export_checkpoint(tiny_checkpoint, tmp_path / "source", options)
    made = convert_to_int8(source, tmp_path / "made")
    operators = [n.op_type for n in onnx.load_from_string(made.read(MODEL)).graph.node]
    assert operators.count("MatMulIntegerToFloat") == 4 * 4
    assert (made.manifest.precision, made.manifest.name) == ("int8", "tiny")
    assert made.manifest.exact_without_vnni
    assert made.manifest.scores == {}  # they are the source's
    assert made.manifest.parity["batch_max_abs_diff"] <= 1e-6
    assert 0.99 <= made.manifest.parity["min_cosine"] < 1
    assert made.canary == source.canary
    before, after = (OnnxEncoder(artifact).encode(TEXTS) for artifact in (source, made))
    assert ((before * after).sum(axis=1) > 0.99).all()
    assert (np.abs(before - after).max(axis=1) > 0).all()


@pytest.mark.parametrize(("family", "precision"), [("bert", "fp32"), ("mpnet", "weight-int8")])
def test_int8_is_as_small_by_conversion_as_by_export(
    family: str, precision: Precision, tmp_path: Path
) -> None:
    """Tables of embeddings are stored as int8 too, whatever the source has."""
    backbone = tiny_backbone(tmp_path / "backbone", family, num_layers=2)
    encoder = build_plain_encoder(backbone, max_seq_length=64)
    encoder.save(str(tmp_path / "checkpoint"), create_model_card=False)
    source, exported = (
        export_checkpoint(tmp_path / "checkpoint", tmp_path / each, replace(FEW, precision=each))
        for each in (precision, "int8")
    )
    made = convert_to_int8(source, tmp_path / "made")

    def weights(artifact: Artifact) -> int:
        return graph_of.weight_bytes(onnx.load_from_string(artifact.read(MODEL)))

    assert weights(made) == pytest.approx(weights(exported), rel=0.05)


def test_a_file_that_is_replaced_meanwhile_is_not_sealed(
    tiny_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written are the bytes that were verified."""
    source = Artifact.open(shutil.copytree(tiny_artifact.path, tmp_path / "source"))
    convert = conversion._convert_graph

    def convert_and_replace(*arguments: Any) -> onnx.ModelProto:
        (source.path / "config.json").write_text('{"pad_token_id": 7}')
        return convert(*arguments)

    monkeypatch.setattr(conversion, "_convert_graph", convert_and_replace)
    made = convert_to_int8(source, tmp_path / "made")
    assert made.config == source.config


@pytest.mark.parametrize("precision", ["fp32", "weight-int8"])
def test_an_encoder_that_can_stop_early_still_can(
    tiny_checkpoint: Path, tmp_path: Path, precision: Precision
) -> None:
    """Its products within branches are of int8, and a block beyond the depth is not run."""
    options = replace(FEW, precision=precision, depths=(3,))
    source = export_checkpoint(tiny_checkpoint, tmp_path / "source", options)
    made = convert_to_int8(source, tmp_path / "made")
    assert made.manifest.depths == (3,)
    assert 0.99 <= made.manifest.parity["depths"]["3"]["min_cosine"] < 1
    graph = onnx.load_from_string(made.read(MODEL)).graph
    for depth in (3, 4):
        operators = operators_run(graph, depth)
        assert operators["MatMulIntegerToFloat"] == 4 * depth
        assert operators["Attention"] == depth
        at = None if depth == 4 else depth
        before, after = (
            OnnxEncoder(artifact).encode(TEXTS, depth=at) for artifact in (source, made)
        )
        assert ((before * after).sum(axis=1) > 0.99).all()


def test_exits_with_gates_of_their_own_keep_them(exits_artifact: Artifact, tmp_path: Path) -> None:
    scored = replace(exits_artifact.manifest, by_depth={"2": {"scores": {"32": 70.0}}})
    source = Artifact(exits_artifact.path, scored)
    made = convert_to_int8(source, tmp_path / "made")
    assert made.manifest.by_depth == {}  # those were of other vectors
    graph = onnx.load_from_string(made.read(MODEL)).graph
    for depth in (2, 3, 4, 6):
        assert operators_run(graph, depth)["MatMulIntegerToFloat"] == 4 * depth
        at = None if depth == 6 else depth
        rows = [OnnxEncoder(each).encode(TEXTS, depth=at) for each in (exits_artifact, made)]
        assert ((rows[0] * rows[1]).sum(axis=1) > 0.99).all()


def test_a_product_of_tokens_that_are_padded_still_stays_in_float32(tmp_path: Path) -> None:
    """ELECTRA's embeddings are 128 wide, and multiplied to the width of its blocks."""
    backbone = tiny_backbone(tmp_path / "backbone", "electra")
    config = SelectorConfig.preset("default", width=32, reduction=4)
    encoder = build_encoder(backbone, config, max_seq_length=64)
    encoder.save(str(tmp_path / "checkpoint"))
    options = replace(FEW, precision="weight-int8")
    source = export_checkpoint(tmp_path / "checkpoint", tmp_path / "source", options)
    made = convert_to_int8(source, tmp_path / "made", sentences=["a cat sings"])
    operators = [n.op_type for n in onnx.load_from_string(made.read(MODEL)).graph.node]
    assert operators.count("MatMulIntegerToFloat") == 4 * 4
    before, after = (OnnxEncoder(artifact).encode(TEXTS) for artifact in (source, made))
    assert ((before * after).sum(axis=1) > 0.99).all()


def test_the_command_prints_what_came_out(
    tiny_artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["int8", str(tiny_artifact.path), str(tmp_path / "made"), "--name", "other"]
    with pytest.raises(SystemExit, match="0"):
        main(command)
    assert "made: int8," in capsys.readouterr().out
    assert Artifact.open(tmp_path / "made").manifest.name == "other"
    with pytest.raises(SystemExit, match="2"):
        main(command)
    assert "made" in capsys.readouterr().err  # it is there already
    with pytest.raises(ArtifactError):
        convert_to_int8(tiny_artifact, tmp_path / "made")


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"precision": "fp16", "packed": False}, "is fp16, not packed: int8 needs a packed fp32"),
        ({"packed": False}, "is fp32, not packed"),
        ({"precision": "int8"}, "is int8: int8 needs"),
    ],
)
def test_what_cannot_be_converted_is_said_with_the_cure(
    tiny_artifact: Artifact, tmp_path: Path, form: dict[str, Any], message: str
) -> None:
    folder = shutil.copytree(tiny_artifact.path, tmp_path / "source")
    source = seal(folder, replace(tiny_artifact.manifest, **form))
    with pytest.raises(ConversionError, match=message):
        convert_to_int8(source, tmp_path / "made")
    assert not (tmp_path / "made").exists()
    with pytest.raises(SystemExit, match="2"):
        main(["int8", str(source.path), str(tmp_path / "made")])
