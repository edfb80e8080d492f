"""Graphs for a GPU: the source's vectors at every depth, by operators that are right there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from s2sent.model.artifact.manifest import MODEL, WEIGHTS
from s2sent.model.artifact.reader import Artifact, graph_at
from s2sent.model.export import graph
from s2sent.model.export.checkpoint import export_checkpoint
from s2sent.model.export.conversion import ConversionError
from s2sent.model.export.gpu.conversion import convert_for_gpu
from s2sent.model.export.gpu.operators import AVOIDED
from s2sent.model.export.options import Precision
from s2sent.model.export.twins import export_twins
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.few import FEW, FEW_SENTENCES
from tests.support.operators_run import softmax_axes
from tests.support.tiny_twins import tiny_twins

# Of transformers' modules of DeBERTa and ModernBERT.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:token_embeddings is none of"),  # of ModernBERT
]

TEXTS = ["the cat sings", "a", "two happy dogs read books in the green city at night " * 3, "a car"]
FAMILIES = ("bert", "roberta", "distilbert", "electra", "mpnet", "deberta-v2", "modernbert", "t5")


def graphs_of(artifact: Artifact) -> list[onnx.GraphProto]:
    depths = (*artifact.manifest.depths, None)
    return [onnx.load_from_string(artifact.read(graph_at(depth))).graph for depth in depths]


def rows_of(artifact: Artifact, depth: int | None, **options: Any) -> NDArray[np.float32]:
    return OnnxEncoder(artifact).encode(TEXTS, depth=depth, **options)


@pytest.mark.parametrize("family", [*FAMILIES, "llama", "exits"])
def test_in_float32_every_depth_has_the_vectors_of_the_source(
    source_of: Any, converted: Any, family: str
) -> None:
    """Within 1e-5 a component, and a text's neighbours in a batch change nothing."""
    source, made = source_of(family), converted(family, "fp32")
    for depth in (*source.manifest.depths, None):
        expected, found = rows_of(source, depth), rows_of(made, depth)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(rows_of(made, depth, batch_size=1), found, atol=1e-6)
    assert made.canary == source.canary
    assert made.manifest.scores == source.manifest.scores


@pytest.mark.parametrize("family", [*FAMILIES, "llama", "exits"])
def test_operators_that_are_wrong_on_a_gpu_are_in_no_graph(converted: Any, family: str) -> None:
    for precision in ("fp32", "fp16"):
        made = converted(family, precision)
        for each in graphs_of(made):
            assert not AVOIDED.intersection(node.op_type for node in each.node)
            assert set(softmax_axes(each.node)) <= {-1}
            assert {value.name for value in each.input} <= {*made.manifest.inputs}
            assert {value.name for value in each.output} <= {"pooled_embedding", "block_weights"}


@pytest.mark.parametrize("family", [*FAMILIES, "llama", "exits"])
def test_in_float16_blocks_are_float16_and_vectors_near_those_of_the_source(
    source_of: Any, converted: Any, family: str
) -> None:
    source, made = source_of(family), converted(family, "fp16")
    for depth in (*source.manifest.depths, None):
        cosines = (rows_of(source, depth) * rows_of(made, depth)).sum(axis=1)
        assert cosines.min() > 0.9995
    assert 0.9995 < (made.manifest.min_cosine or 0) <= 1
    for each in graphs_of(made):
        large = [tensor for tensor in each.initializer if len(tensor.dims) == 2]
        kinds = {tensor.data_type for tensor in large if "pooling/" not in tensor.name}
        assert TensorProto.FLOAT not in kinds
        assert {value.type.tensor_type.elem_type for value in each.output} == {TensorProto.FLOAT}
    assert made.manifest.scores == made.manifest.by_depth == {}  # they are the source's


def test_block_weights_are_those_of_the_source(exits_artifact: Artifact, converted: Any) -> None:
    before, after = OnnxEncoder(exits_artifact), OnnxEncoder(converted("exits", "fp32"))
    rows = [row.input_ids for row in before.tokenizer.tokenize(TEXTS)]
    for depth in (2, None):
        expected, found = (each.block_weights(rows, depth=depth) for each in (before, after))
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp16", "weight-int8"])
def test_other_precisions_are_converted_too(
    exits_checkpoint: Path, tmp_path: Path, precision: Precision
) -> None:
    options = replace(FEW, precision=precision, depths=(2, 3, 4))
    source = export_checkpoint(exits_checkpoint, tmp_path / "source", options)
    made = convert_for_gpu(source, tmp_path / "made", "fp16", sentences=FEW_SENTENCES)
    for each in graphs_of(made):
        assert not AVOIDED.intersection(node.op_type for node in each.node)
    for depth in (2, None):
        cosines = (rows_of(source, depth) * rows_of(made, depth)).sum(axis=1)
        assert cosines.min() > 0.9995


def test_twins_are_converted_too(tmp_path: Path) -> None:
    tiny_twins(tmp_path, num_layers=3).save(str(tmp_path / "twins"), create_model_card=False)
    source = export_twins(tmp_path / "twins", tmp_path / "source", FEW)
    for precision in ("fp32", "fp16"):
        made = convert_for_gpu(source, tmp_path / precision, precision, sentences=FEW_SENTENCES)
        assert ((rows_of(source, None) * rows_of(made, None)).sum(axis=1) > 0.9995).all()
        for each in graphs_of(made):
            assert not AVOIDED.intersection(node.op_type for node in each.node)


def test_weights_in_a_file_of_their_own_are_read(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a graph above two gigabytes are."""
    monkeypatch.setattr(graph, "LARGEST_GRAPH", 1)
    source = export_checkpoint(tiny_checkpoint, tmp_path / "source", FEW)
    assert WEIGHTS in source.manifest.files
    made = convert_for_gpu(source, tmp_path / "made", "fp32", sentences=FEW_SENTENCES)
    np.testing.assert_allclose(rows_of(made, None), rows_of(source, None), atol=1e-5)


def test_depths_have_their_weights_in_one_file_once(
    exits_artifact: Artifact, converted: Any
) -> None:
    """The graphs without their weights are small, and the file is no larger than the source."""
    made = converted("exits", "fp32")
    files = made.manifest.files
    assert files[WEIGHTS].bytes <= exits_artifact.manifest.files[MODEL].bytes
    for depth in (*made.manifest.depths, None):
        kept = onnx.load_from_string(made.read(graph_at(depth))).graph.initializer
        assert all(len(tensor.raw_data) < 1024 for tensor in kept)


def test_int8_products_are_refused(tiny_artifact: Artifact, tmp_path: Path) -> None:
    source = Artifact(tiny_artifact.path, replace(tiny_artifact.manifest, precision="int8"))
    with pytest.raises(ConversionError, match=r"is int8, of which no fp16 is made.* Export"):
        convert_for_gpu(source, tmp_path / "made", "fp16", sentences=FEW_SENTENCES)
    assert not (tmp_path / "made").exists()


def with_operator(artifact: Artifact, operator: str, folder: Path) -> Artifact:
    """The artifact with an operator before its output that depends on what is embedded."""
    model = onnx.load_from_string(artifact.read(MODEL))
    nodes = model.graph.node
    (maker,) = [node for node in nodes if "pooled_embedding" in node.output]
    maker.output[list(maker.output).index("pooled_embedding")] = "before"
    for node in nodes:
        node.input[:] = ["before" if name == "pooled_embedding" else name for name in node.input]
    if operator == "NonZero":
        model.graph.node.extend([
            helper.make_node("NonZero", ["before"], ["found"]),
            helper.make_node("Cast", ["found"], ["places"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["places"], ["count"]),
        ])  # fmt: skip
    else:
        branch = helper.make_graph(
            [helper.make_node("Identity", ["before"], ["same"])],
            "branch",
            [],
            [helper.make_empty_tensor_value_info("same")],
        )
        model.graph.node.extend([
            helper.make_node("ReduceSum", ["before"], ["total"], keepdims=0),
            helper.make_node("Cast", ["total"], ["is"], to=TensorProto.BOOL),
            helper.make_node("If", ["is"], ["count"], then_branch=branch, else_branch=branch),
        ])  # fmt: skip
    model.graph.node.append(helper.make_node("Max", ["before", "count"], ["pooled_embedding"]))
    (folder / MODEL).parent.mkdir(parents=True)
    for name in artifact.manifest.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(artifact.read(name))
    onnx.save(model, folder / MODEL)
    return Artifact(folder, replace(artifact.manifest, files={}))


@pytest.mark.parametrize(
    ("operator", "said"),
    [("NonZero", "a NonZero of something else than its mask"), ("If", "a branch that is chooses")],
)
def test_what_cannot_be_replaced_is_refused_with_the_family(
    tiny_artifact: Artifact, tmp_path: Path, operator: str, said: str
) -> None:
    source = with_operator(tiny_artifact, operator, tmp_path / "source")
    with pytest.raises(ConversionError, match=rf"\(a bert\) is not for a GPU: it has {said}"):
        convert_for_gpu(source, tmp_path / "made", "fp32", sentences=FEW_SENTENCES)
