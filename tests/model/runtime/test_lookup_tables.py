"""The tables that rows are looked up in, as they stand in a graph's bytes; nothing else of it."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from s2sent.model.artifact.graph_policy import GraphRefused
from s2sent.model.artifact.manifest import MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.lookup_tables import LOOKUPS, read_lookup_tables

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
IDS = helper.make_tensor_value_info("ids", TensorProto.INT64, [2])
ROWS = helper.make_tensor_value_info("rows", TensorProto.FLOAT, [2, 3])
GATHER = helper.make_node("Gather", ["table", "ids"], ["rows"])
PRODUCT = helper.make_node("MatMul", ["states", "table"], ["rows"])


def a_tensor(array: np.ndarray = TABLE) -> TensorProto:
    return numpy_helper.from_array(array, "table")


def a_model(node: NodeProto = GATHER, tensor: TensorProto | None = None) -> ModelProto:
    graph = helper.make_graph([node], "g", [IDS], [ROWS], [tensor or a_tensor()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def read(node: NodeProto = GATHER, tensor: TensorProto | None = None) -> dict[str, np.ndarray]:
    return read_lookup_tables(a_model(node, tensor).SerializeToString())


@pytest.mark.parametrize("operator", sorted(LOOKUPS))
def test_a_table_that_a_lookup_reads_is_found(operator: bytes) -> None:
    tables = read(helper.make_node(operator.decode(), ["ids", "table"], ["rows"]))
    assert list(tables) == ["table"]
    assert tables["table"].dtype == np.float32
    np.testing.assert_array_equal(tables["table"], TABLE)


def test_an_encoder_has_three(tiny_artifact: Artifact) -> None:
    """As the package ``onnx`` reads them, and with memory of their own."""
    content = tiny_artifact.read(MODEL)
    tables = read_lookup_tables(content)
    kinds = ("word", "position", "token_type")
    assert all(any(f"{kind}_embeddings" in name for name in tables) for kind in kinds)
    assert len(tables) == len(kinds)
    initializers = {each.name: each for each in onnx.load_from_string(content).graph.initializer}
    for name, table in tables.items():
        np.testing.assert_array_equal(table, numpy_helper.to_array(initializers[name]))
        assert not np.shares_memory(table, np.frombuffer(content, np.uint8))


def test_a_matrix_of_a_product_is_left_out() -> None:
    """ONNX Runtime packs it for each session, and would not use what is shared."""
    assert not read(PRODUCT)


def as_numbers() -> TensorProto:
    return helper.make_tensor("table", TensorProto.FLOAT, TABLE.shape, TABLE.ravel())


def with_dims(*dims: int) -> TensorProto:
    tensor = a_tensor()
    tensor.dims[:] = dims
    return tensor


def cut_short() -> TensorProto:
    tensor = a_tensor()
    tensor.raw_data = tensor.raw_data[:-1]
    return tensor


@pytest.mark.parametrize(
    "tensor",
    [
        as_numbers,
        cut_short,
        lambda: with_dims(4, 4),
        lambda: with_dims(-4, -3),
        lambda: with_dims(2**62, 2**62),
        lambda: with_dims(4, 3, 1),
        lambda: with_dims(),
        lambda: a_tensor(TABLE[:0]),
        lambda: a_tensor(TABLE[0]),
        lambda: a_tensor(TABLE.astype(np.int32)),
        lambda: a_tensor(TABLE.astype(np.float16)),
        lambda: a_tensor(TABLE.astype(np.float64)),
    ],
)
def test_what_is_not_plainly_a_table_is_left_to_onnx_runtime(
    tensor: Callable[[], TensorProto],
) -> None:
    """It reads such a tensor in its own way, or refuses it in its own words."""
    assert not read(tensor=tensor())


@pytest.mark.parametrize(
    "extra", [TensorProto(raw_data=TABLE.tobytes()), TensorProto(name="table"), TensorProto()]
)
def test_a_field_that_comes_twice_is_left_to_onnx_runtime(extra: TensorProto) -> None:
    """Of two blocks of bytes, or two names, a reader takes the last."""
    tensor = a_tensor().SerializeToString() + extra.SerializeToString()
    graph = a_field(1, GATHER.SerializeToString()) + a_field(5, tensor)
    assert list(read_lookup_tables(a_field(7, graph))) == ([] if extra.ByteSize() else ["table"])


def a_field(number: int, content: bytes) -> bytes:
    """A message in a field of another one; its length takes two bytes."""
    return bytes([number << 3 | 2, len(content) & 0x7F | 0x80, len(content) >> 7]) + content


@pytest.mark.parametrize("content", [b"\x3a\x7f", b"\x38\x00", b"\x3a\x02\x28\x00"])
def test_what_is_not_onnx_is_refused(content: bytes) -> None:
    """Cut off, a number for the graph, a number for a tensor."""
    with pytest.raises(GraphRefused, match="is not ONNX, or was cut off"):
        read_lookup_tables(content)


def test_every_cut_within_the_graph_is_refused() -> None:
    content = a_model().SerializeToString()
    graph = a_model().graph.SerializeToString()
    start = content.index(graph)
    for length in range(start, start + len(graph)):
        with pytest.raises(GraphRefused):
            read_lookup_tables(content[:length])
