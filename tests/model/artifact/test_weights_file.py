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
    return np.asarray(open_sessions(artifact, threads=[1])[0].run(None, {"x": X})[0])


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
    + [{"offset": "4"}, {"offset": "-4"}, {"offset": "9" * 5_000}, {"offset": "\u0664"}],
    ids=["above", "absolute", "behind the end", "before the start", "far", "no ASCII"],
)
def test_weights_elsewhere_are_refused(place: dict[str, str]) -> None:
    content = outside(**place).SerializeToString()
    check_graph(content, weights_apart=True)
    with pytest.raises(GraphRefused, match="whose data is"):
        list(weights_of(content, memoryview(WEIGHT.tobytes())))


def varint(number: int) -> bytes:
    """A base-128 varint, of as many bytes as it takes."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def with_weight(*more: bytes, keep: TensorProto | None = None) -> bytes:
    """A model whose weight is ``keep``, or one in /etc/passwd, with more fields behind it."""
    model = outside("/etc/passwd")
    tensor = keep or model.graph.initializer[0]
    if keep is None:
        tensor.ClearField("data_location")
    content = tensor.SerializeToString() + b"".join(more)
    del model.graph.initializer[:]
    inner: bytes = model.graph.SerializeToString() + b"\x2a" + varint(len(content)) + content
    model.ClearField("graph")
    head: bytes = model.SerializeToString()
    return head + b"\x3a" + varint(len(inner)) + inner


LOCATION = b"\x70"  # the tag of data_location, a varint


@pytest.mark.parametrize(
    "fields",
    [
        (),  # external_data without data_location
        *((LOCATION + varint(value),) for value in (2, 2**31, 2**32, 2**32 + 1, 2**63, 2**64 - 1)),
        *((LOCATION + varint(value),) for value in (2**64, 2**64 + 1)),
        (LOCATION + b"\x81" + b"\x80" * 8 + b"\x02",),  # above 64 bits, which readers drop
        (LOCATION + varint(0), LOCATION + varint(2**32 + 1)),
        (LOCATION + varint(1), LOCATION + varint(0)),
        (LOCATION + varint(0), LOCATION + varint(1)),  # the last one counts: /etc/passwd
        (b"\x72\x01\x01",),  # packed
        (b"\x75\x01\x00\x00\x00",),  # of four bytes
        (b"\x71\x01" + b"\x00" * 7,),  # of eight
    ],
    ids=lambda fields: b" ".join(fields).hex() or "none",
)
@pytest.mark.parametrize("weights_apart", [False, True])
def test_no_way_to_write_where_data_is_opens_another_file(
    fields: tuple[bytes, ...], weights_apart: bool
) -> None:
    def read() -> None:
        content = with_weight(*fields)
        check_graph(content, weights_apart=weights_apart)
        list(weights_of(content, memoryview(WEIGHT.tobytes())))

    with pytest.raises(GraphRefused):
        read()


@pytest.mark.parametrize("dims", [[2**62, 0], [-1, -1], [-1, 0], [2**40, 2**40], [0, 2**63 - 1]])
def test_dimensions_that_no_array_has_are_refused(dims: list[int]) -> None:
    tensor = outside().graph.initializer[0]
    del tensor.dims[:]
    tensor.dims.extend(dims)
    content = with_weight(keep=tensor)
    check_graph(content, weights_apart=True)
    with pytest.raises(GraphRefused):
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
