"""Weights in a file of their own are the verified ones, and no other file is opened for them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from s2sent.model.artifact.errors import ChecksumMismatch, MissingFile, UnsafeFile
from s2sent.model.artifact.graph_policy import GraphRefused, check_graph
from s2sent.model.artifact.manifest import MODEL, WEIGHTS
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.weights_file import WEIGHTS_LOCATION, weights_of
from s2sent.model.artifact.writer import seal, staged
from s2sent.model.export import graph
from s2sent.model.runtime.sessions import open_sessions
from tests.support.small_artifact import a_manifest, fill

WEIGHT = np.arange(1024, dtype=np.float32).reshape(32, 32)
X = np.ones((2, 32), np.float32)


def a_model() -> ModelProto:
    """y [batch, 32] = x times a matrix of 4 KiB, the least that is stored outside."""
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", 32]) for name in "xy"]
    made = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        kinds[:1],
        kinds[1:],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    opsets = [helper.make_opsetid("", graph.OPSET)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """With a graph that counts as too large for one file."""
    monkeypatch.setattr(graph, "LARGEST_GRAPH", WEIGHT.nbytes - 1)
    with staged(tmp_path / "large") as folder:
        fill(folder)
        graph.save(a_model(), str(folder / MODEL))
        seal(folder, a_manifest())
    return Artifact.open(tmp_path / "large")


def run(artifact: Artifact) -> np.ndarray:
    return np.asarray(open_sessions(artifact, "cpu", threads=[1])[0].run(None, {"x": X})[0])


@pytest.mark.parametrize("keep_graph", [True, False])
def test_a_large_graph_is_two_files_and_computes_the_same(
    artifact: Artifact, keep_graph: bool
) -> None:
    assert {MODEL, WEIGHTS} <= {*artifact.manifest.files}
    assert artifact.manifest.files[MODEL].bytes < 1024
    opened = Artifact.open(artifact.path, keep_graph=keep_graph)
    np.testing.assert_array_equal(run(opened), X @ WEIGHT)


def test_what_was_verified_is_what_runs(artifact: Artifact) -> None:
    """The file may have gone meanwhile."""
    opened = Artifact.open(artifact.path, keep_graph=True)
    (artifact.path / WEIGHTS).unlink()
    np.testing.assert_array_equal(run(opened), X @ WEIGHT)


def test_changed_and_missing_weights_are_refused(artifact: Artifact) -> None:
    file = artifact.path / WEIGHTS
    file.write_bytes(file.read_bytes()[::-1])
    with pytest.raises(ChecksumMismatch, match="model.onnx_data has 4096 bytes"):
        Artifact.open(artifact.path)
    file.unlink()
    with pytest.raises(MissingFile, match="model.onnx_data is listed"):
        Artifact.open(artifact.path)


def outside(location: str = WEIGHTS_LOCATION, offset: str = "0") -> ModelProto:
    model = a_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset)):
        tensor.external_data.add(key=key, value=value)
    return model


@pytest.mark.parametrize(
    "place",
    [{"location": "../model.onnx_data"}, {"location": "/etc/passwd"}]
    + [{"offset": "4"}, {"offset": "-4"}],
    ids=["above", "absolute", "behind the end", "before the start"],
)
def test_weights_elsewhere_are_refused(place: dict[str, str]) -> None:
    content = outside(**place).SerializeToString()
    check_graph(content, weights_apart=True)
    with pytest.raises(GraphRefused, match="whose data is"):
        list(weights_of(content, memoryview(WEIGHT.tobytes())))


def test_only_the_main_graphs_weights_may_be_outside() -> None:
    """Not those of a branch, which ONNX Runtime would read from the disk."""
    inner = outside().graph
    del inner.input[:]
    condition = numpy_helper.from_array(np.array(True), "condition")
    node = helper.make_node("If", ["condition"], ["y"], then_branch=inner, else_branch=inner)
    model = a_model()
    del model.graph.node[:]
    model.graph.node.append(node)
    model.graph.initializer.append(condition)
    with pytest.raises(GraphRefused, match="data is in another file"):
        check_graph(model.SerializeToString(), weights_apart=True)


def test_a_graph_without_the_file_may_not_name_it(tmp_path: Path) -> None:
    fill(tmp_path)
    onnx.save(outside(), str(tmp_path / MODEL))
    with pytest.raises(UnsafeFile, match="data is in another file"):
        seal(tmp_path, a_manifest())
