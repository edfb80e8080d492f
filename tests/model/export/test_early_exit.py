"""An encoder that stops early gives the vectors of a shorter encoder, and runs no block beyond."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from s2sent.model.artifact.manifest import MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import seal
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.int8.rounding import round_weights
from s2sent.model.export.options import ExportError, ExportOptions, Precision
from s2sent.model.export.parity import parity_sentences
from s2sent.model.network.encoder import build_encoder, find_selector, get_selector, load_encoder
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.network.pooled import stopped_at
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.training.__main__ import main
from tests.support.operators_run import operators_run
from tests.support.server_process import running_server
from tests.support.tiny import tiny_backbone
from tests.support.tiny_elastic import elastic_checkpoint

Rows = NDArray[np.float32]

WIDTH, NUM_BLOCKS = 32, 4
FEW = parity_sentences()[:12]
TEXTS = ["the cat sings", "a", "two happy dogs read books in the green city at night " * 3, "if no"]


@dataclass(frozen=True)
class Exported:
    """A checkpoint of four blocks and its artifact with all the exits it can have."""

    checkpoint: Path
    artifact: Artifact
    without_exits: Artifact


def a_checkpoint(folder: Path, kind: str) -> Path:
    if kind in ("own gates", "projected", "blocks projected"):
        return elastic_checkpoint(
            folder, project=kind != "own gates", blocks=kind == "blocks projected"
        )
    backbone = tiny_backbone(folder / "backbone", width=WIDTH, num_layers=NUM_BLOCKS)
    if kind == "plain":
        transformer = Transformer(str(backbone))
        transformer.max_seq_length = 64
        encoder = SentenceTransformer(modules=[transformer, Pooling(WIDTH, "mean"), Normalize()])
    else:
        config = SelectorConfig(width=WIDTH, num_blocks=2, reduction=4)
        encoder = build_encoder(backbone, config, max_seq_length=64)
    encoder.save(str(folder / "checkpoint"))
    return folder / "checkpoint"


@pytest.fixture(
    scope="module", params=["plain", "S2Sent", "own gates", "projected", "blocks projected"]
)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("exits")
    checkpoint = a_checkpoint(folder, request.param)
    depths = (1, 2, 3) if request.param == "plain" else (2, 3)
    options = ExportOptions(sentences=FEW)
    return Exported(
        checkpoint,
        export_checkpoint(checkpoint, folder / "exits", replace(options, depths=depths)),
        export_checkpoint(checkpoint, folder / "none", options),
    )


def shortened(checkpoint: Path, depth: int | None) -> SentenceTransformer:
    """The checkpoint's encoder with the blocks beyond ``depth`` cut out of its backbone."""
    encoder = load_encoder(checkpoint)
    blocks: Any = encoder[0].get_submodule("auto_model.encoder.layer")
    del blocks[depth or len(blocks) :]
    return encoder


def by_torch(checkpoint: Path, depth: int | None) -> Rows:
    return np.asarray(shortened(checkpoint, depth).encode(TEXTS, normalize_embeddings=True))


def depths_of(artifact: Artifact) -> list[int | None]:
    return [*artifact.manifest.depths, None]


def test_every_depth_gives_a_shorter_encoders_vectors(exported: Exported) -> None:
    served = OnnxEncoder(exported.artifact)
    vectors = [served.encode(TEXTS, depth=depth) for depth in depths_of(exported.artifact)]
    for depth, rows in zip(depths_of(exported.artifact), vectors, strict=True):
        np.testing.assert_allclose(rows, by_torch(exported.checkpoint, depth), atol=1e-5)
    assert all(np.abs(rows - vectors[-1]).max() > 0.01 for rows in vectors[:-1])


def test_training_that_drops_layers_sees_the_vectors_that_are_served(exported: Exported) -> None:
    encoder = load_encoder(exported.checkpoint)
    before = encoder.encode(TEXTS)
    for depth in exported.artifact.manifest.depths:
        with stopped_at(encoder, depth):
            rows = encoder.encode(TEXTS)
        np.testing.assert_allclose(rows, by_torch(exported.checkpoint, depth), atol=1e-5)
    assert np.array_equal(encoder.encode(TEXTS), before)


def test_a_text_alone_has_the_vector_it_has_in_a_batch(exported: Exported) -> None:
    served = OnnxEncoder(exported.artifact)
    for depth in depths_of(exported.artifact):
        alone = np.concatenate([served.encode([text], depth=depth) for text in TEXTS])
        np.testing.assert_allclose(served.encode(TEXTS, depth=depth), alone, atol=1e-6)


def test_blocks_beyond_the_depth_are_not_run(exported: Exported, tmp_path: Path) -> None:
    """With matrices that are not numbers in the last block, lower depths give what they gave."""
    path = tmp_path / MODEL
    path.parent.mkdir()
    graph = onnx.load(exported.artifact.onnx_path)
    *_, last = (node for node in graph.graph.node if node.name.startswith("if_deeper_than"))
    branch = next(each.g for each in last.attribute if each.name == "then_branch")
    read = {name for node in branch.node for name in node.input}
    for weight in graph.graph.initializer:
        if weight.name in read and len(weight.dims) == 2:  # equal vectors are stored once for all
            broken = np.full_like(numpy_helper.to_array(weight), np.nan)
            weight.CopyFrom(numpy_helper.from_array(broken, weight.name))
    onnx.save(graph, path)
    for file in exported.artifact.path.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damaged = OnnxEncoder(seal(tmp_path, exported.artifact.manifest))
    served = OnnxEncoder(exported.artifact)
    assert np.isnan(damaged.encode(TEXTS)).all()
    for depth in exported.artifact.manifest.depths:
        expected = served.encode(TEXTS, depth=depth)
        assert np.array_equal(damaged.encode(TEXTS, depth=depth), expected)


def test_exits_cost_full_depth_nothing(exported: Exported) -> None:
    """The same vectors, every attention fused, no weight stored twice."""
    with_exits, without = exported.artifact, exported.without_exits
    rows = OnnxEncoder(without).encode(TEXTS)
    np.testing.assert_allclose(OnnxEncoder(with_exits).encode(TEXTS), rows, atol=1e-6)
    assert with_exits.manifest.fused == without.manifest.fused
    weights = [sum(map(_size, onnx.load(a.onnx_path).graph.initializer))
               for a in (with_exits, without)]  # fmt: skip
    selector = find_selector(load_encoder(exported.checkpoint))
    parts = [selector.exits, selector.projections] if selector else []
    own = sum(value.numel() for part in parts for value in part.parameters())
    assert weights[0] == weights[1] + 1 + own  # 1 for the depth


def _size(tensor: onnx.TensorProto) -> int:
    return int(np.prod(tensor.dims))


def test_engines_that_know_no_depth_feed_what_they_always_fed(exported: Exported) -> None:
    def signature(artifact: Artifact) -> list[list[tuple[str, str, Any]]]:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = ort.InferenceSession(str(artifact.onnx_path), options)
        ends = (session.get_inputs(), session.get_outputs())
        return [[(value.name, value.type, value.shape) for value in end] for end in ends]

    assert signature(exported.artifact) == signature(exported.without_exits)


def test_the_manifest_has_the_depths_and_the_parity_of_each(exported: Exported) -> None:
    manifest = exported.artifact.manifest
    assert set(manifest.parity["depths"]) == {str(depth) for depth in manifest.depths}
    for report in manifest.parity["depths"].values():
        assert 0 <= report["max_abs_diff"] <= 1e-5
    assert exported.without_exits.manifest.depths == ()
    assert "depths" not in exported.without_exits.manifest.parity


def test_a_depth_that_is_no_exit_is_refused(exported: Exported) -> None:
    served = OnnxEncoder(exported.artifact)
    with pytest.raises(ValueError, match="depth is 5; the artifact can stop at .*2, 3, 4"):
        served.encode(TEXTS, depth=5)
    with pytest.raises(ValueError, match="depth is 2"):
        OnnxEncoder(exported.without_exits).encode(TEXTS, depth=2)


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        *(("blocks projected", each) for each in ("fp16", "weight-int8", "int8")),
        *(("plain", "int8"), ("S2Sent", "fp16")),
    ],
)
def test_rounded_encoders_can_stop_early_too(
    tmp_path: Path, kind: str, precision: Precision
) -> None:
    """Parity at every depth is the export's own condition; blocks beyond it are not run."""
    options = ExportOptions(sentences=FEW, depths=(2, 3), precision=precision)
    checkpoint = a_checkpoint(tmp_path, kind)
    made = export_checkpoint(checkpoint, tmp_path / "artifact", options)
    assert made.manifest.depths == (2, 3)
    graph = onnx.load(made.onnx_path).graph
    for depth in (2, 3, 4):
        operators = operators_run(graph, depth)
        assert operators["MultiHeadAttention"] + operators["Attention"] == depth
        assert operators["MatMulIntegerToFloat"] == (4 * depth if precision == "int8" else 0)


@pytest.mark.parametrize(
    ("kind", "depth"), [("plain", 0), ("plain", 4), ("S2Sent", 1), ("S2Sent", 4)]
)
def test_a_depth_that_cannot_be_an_exit_is_refused(tmp_path: Path, kind: str, depth: int) -> None:
    checkpoint = a_checkpoint(tmp_path, kind)
    least = 1 if kind == "plain" else 2
    message = rf"depth {depth} cannot .* pools {least} of 4 .* depths from {least} to 3\."
    with pytest.raises(CheckpointError, match=message):
        export_checkpoint(checkpoint, tmp_path / "artifact", ExportOptions(depths=(depth,)))
    assert not (tmp_path / "artifact").exists()


def test_states_that_are_divided_for_the_selector_are_not_passed_on(tmp_path: Path) -> None:
    """Blocks beyond a depth would all be run."""
    config = SelectorConfig(width=WIDTH, num_blocks=2, reduction=4, input_norm="length")
    backbone = tiny_backbone(tmp_path / "backbone", width=WIDTH, num_layers=NUM_BLOCKS)
    build_encoder(backbone, config, max_seq_length=64).save(str(tmp_path / "checkpoint"))
    with pytest.raises(ExportError, match="input_norm is 'length'.*of a bert has no depths"):
        export_checkpoint(
            tmp_path / "checkpoint", tmp_path / "artifact", ExportOptions(depths=(2,))
        )


def test_a_depth_may_be_named_twice(tmp_path: Path) -> None:
    options = ExportOptions(sentences=FEW, depths=(2, 2, 3))
    made = export_checkpoint(elastic_checkpoint(tmp_path), tmp_path / "artifact", options)
    assert made.manifest.depths == (2, 3)


def test_a_mean_of_blocks_with_a_matrix_that_reads_them_exports(tmp_path: Path) -> None:
    """Each block is pooled once for all exits; parity at every depth is the export's condition."""
    backbone = tiny_backbone(tmp_path / "backbone", width=WIDTH, num_layers=NUM_BLOCKS)
    config = SelectorConfig(
        width=WIDTH, num_blocks=2, spatial_selection="avg", exits=(2, 3), project_exits=True,
        project_blocks=True,
    )  # fmt: skip
    encoder = build_encoder(backbone, config, max_seq_length=64)
    for matrix in get_selector(encoder).projections.values():
        torch.nn.init.normal_(matrix, std=0.1)
    encoder.save(str(tmp_path / "checkpoint"))
    options = ExportOptions(sentences=FEW, depths=(2, 3))
    made = export_checkpoint(tmp_path / "checkpoint", tmp_path / "artifact", options)
    graph = onnx.load(made.onnx_path).graph
    for depth in (2, 3, 4):
        assert operators_run(graph, depth)["Attention"] == depth
    np.testing.assert_allclose(OnnxEncoder(made).encode(TEXTS), encoder.encode(TEXTS), atol=1e-5)


def test_a_depth_that_was_not_trained_is_refused(tmp_path: Path) -> None:
    checkpoint = elastic_checkpoint(tmp_path, exits=(3,))
    with pytest.raises(
        CheckpointError, match=r"depth 2 cannot .* trained with exits at 3\. Choose"
    ):
        export_checkpoint(checkpoint, tmp_path / "artifact", ExportOptions(depths=(2, 3)))


def test_the_matrices_of_exits_are_stored_as_int8(tmp_path: Path) -> None:
    """In `weight-int8`, a byte a weight and a scale a row; gates stay as they are."""
    checkpoint = elastic_checkpoint(tmp_path, blocks=True)
    options = ExportOptions(sentences=FEW, depths=(2, 3), precision="weight-int8")
    made = export_checkpoint(checkpoint, tmp_path / "artifact", options)
    stored = {each.name: each for each in onnx.load(made.onnx_path).graph.initializer}
    rounded = round_weights(load_encoder(checkpoint))
    for depth, matrix in get_selector(rounded).projections.items():
        name = f"pooling/selector.projections.{depth}"
        whole, scale = (
            numpy_helper.to_array(stored[f"{name}_{part}"]) for part in ("int8", "scale")
        )
        assert whole.dtype == np.int8
        assert scale.shape == (len(matrix), 1)
        np.testing.assert_allclose(whole * scale, matrix.detach(), rtol=1e-6)
        assert name not in stored
    assert "pooling/selector.exits.2.spatial_selection.expand.weight" in stored


def test_one_pooling_is_run_and_only_blocks_of_its_depth_feed_it(tmp_path: Path) -> None:
    """Each pooling is the branch of an If of its own, and reads slots that its depth has filled."""
    options = ExportOptions(sentences=FEW, depths=(2, 3))
    artifact = export_checkpoint(elastic_checkpoint(tmp_path), tmp_path / "artifact", options)
    graph = onnx.load(artifact.onnx_path).graph
    poolings = [node for node in graph.node if node.name.startswith("pool_by_")]
    assert [node.input[0] for node in poolings] == [
        "stops_by_2",
        "stops_by_3_after_2",
        "deeper_than_3",
    ]


def test_the_command_line_takes_depths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, target = a_checkpoint(tmp_path, "plain"), tmp_path / "artifact"
    with pytest.raises(SystemExit, match="0"):
        main(["export", str(checkpoint), str(target), "--depths", "3,1"])
    assert Artifact.open(target).manifest.depths == (1, 3)
    assert "depth 3: sentences" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["export", str(checkpoint), str(target), "--depths", "two"])
    assert "'two' is not a list of block numbers such as 2,4." in capsys.readouterr().err


def test_requests_of_many_depths_at_one_time_get_their_own_vectors(
    exits_checkpoint: Path, exits_artifact: Artifact
) -> None:
    """Over HTTP, in parallel; similarity is that of the depth, and /info tells the depths.

    The log is JSON alone: ONNX Runtime would warn about the default value of the depth, in colours.
    """
    depths = depths_of(exits_artifact)
    expected = {depth: by_torch(exits_checkpoint, depth) for depth in depths}
    with running_server(exits_artifact.path) as server, ThreadPoolExecutor(8) as pool:

        def ask(depth: int | None) -> Any:
            return server.client.post("/embed", json={"inputs": TEXTS, "depth": depth}).json()

        answers = pool.map(ask, depths * 20)
        for depth, rows in zip(depths * 20, answers, strict=True):
            np.testing.assert_allclose(rows, expected[depth], atol=1e-5)
        for depth in depths:
            body = {"inputs": {"pairs": [TEXTS[:2]]}, "parameters": {"depth": depth}}
            score = server.client.post("/similarity", json=body).json()[0]
            assert score == pytest.approx(expected[depth][0] @ expected[depth][1], abs=1e-5)
        assert server.client.get("/info").json()["depths"] == depths[:-1]
        server.stop()
    assert all("level" in line for line in server.log), server.log


def test_a_manifest_may_list_exits(exported: Exported) -> None:
    manifest = replace(exported.artifact.manifest, depths=(2,))
    assert type(manifest).from_json(manifest.to_json()).depths == (2,)
