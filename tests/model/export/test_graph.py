"""Graph surgery keeps what a graph computes, and refuses a graph of the wrong shape."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from model.export import graph
from model.export.graph import GraphError
from model.export.stored_int8 import round_channels, store_int8

WIDTH = 64


def a_graph(*nodes: Any, weights: dict[str, NDArray[np.float32]]) -> onnx.ModelProto:
    """x [batch, 64] -> y, through ``nodes`` with ``weights``."""
    return helper.make_model(
        helper.make_graph(
            list(nodes),
            "test",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "width"])],
            [numpy_helper.from_array(value, name) for name, value in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", graph.OPSET)],
        ir_version=10,
    )


def run(model: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[np.float32]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    result: NDArray[np.float32] = session.run(None, {"x": x})[0]
    return result


def a_weight(rows: int = WIDTH, columns: int = WIDTH) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)


@given(axis=st.sampled_from([0, 1]), seed=st.integers(0, 100), scale=st.floats(1e-6, 1e6))
def test_rounding_errs_by_half_a_step_of_its_channel(axis: int, seed: int, scale: float) -> None:
    """No weight moves by more than half of max|w| / 127 of its channel, whatever the scale."""
    weight = (np.random.default_rng(seed).normal(size=(7, 5)) * scale).astype(np.float32)
    step = np.abs(weight).max(axis=1 - axis, keepdims=True) / 127
    assert np.all(np.abs(round_channels(weight, axis) - weight) <= step * 0.5001)


def test_rounding_twice_is_rounding_once() -> None:
    """The grid is found again from rounded weights, so storing them loses nothing."""
    once = round_channels(a_weight(), axis=0)
    np.testing.assert_allclose(round_channels(once, axis=0), once, rtol=1e-6)


def test_a_channel_of_zeros_stays_zero() -> None:
    """No division by a zero scale."""
    weight = a_weight()
    weight[3] = 0
    assert np.all(round_channels(weight, axis=0)[3] == 0)


def test_int8_storage_changes_the_size_and_not_the_result() -> None:
    """A rounded weight is stored in a quarter of the bytes and gives the same products."""
    weight = round_channels(a_weight(), axis=1)
    model = a_graph(helper.make_node("MatMul", ["x", "w"], ["y"]), weights={"w": weight})
    x = a_weight(5)
    before, size = run(model, x), model.ByteSize()
    assert store_int8(model) == 1
    assert model.ByteSize() < 0.4 * size
    np.testing.assert_allclose(run(model, x), before, rtol=1e-5, atol=1e-6)


def test_weights_off_the_grid_are_refused() -> None:
    """Storing as int8 never rounds by itself: torch must have computed with the same weights."""
    model = a_graph(helper.make_node("MatMul", ["x", "w"], ["y"]), weights={"w": a_weight()})
    with pytest.raises(GraphError, match="w is not on the int8 grid"):
        store_int8(model)


def test_small_matrices_keep_their_precision() -> None:
    """A matrix below the threshold is stored as it is."""
    model = a_graph(helper.make_node("MatMul", ["x", "w"], ["y"]), weights={"w": a_weight(64, 2)})
    assert store_int8(model) == 0


def test_a_missing_fused_attention_is_refused() -> None:
    """The message says how many of how many, and what to do."""
    graph.require_fused_attention({"Attention": 4, "MultiHeadAttention": 2}, 6)
    with pytest.raises(GraphError, match=r"4 of 6 attention blocks.*allow unfused"):
        graph.require_fused_attention({"Attention": 4, "BiasGelu": 6}, 6)


def a_selector(*nodes: Any) -> onnx.ModelProto:
    """A graph that reads the block states ``x``, to be cut before its first node."""
    inputs = [
        helper.make_tensor_value_info("attention_mask", TensorProto.FLOAT, ["batch", 3]),
        helper.make_tensor_value_info("ids", TensorProto.FLOAT, ["batch", 3]),
    ]
    output = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "width"])]
    first = helper.make_node("Relu", ["ids"], ["x"])
    model = helper.make_model(
        helper.make_graph([first, *nodes], "test", inputs, output), ir_version=10
    )
    model.graph.value_info.append(
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    )
    return model


def test_a_selector_that_builds_the_whole_stack_is_refused() -> None:
    """Block states may feed one product only; a Concat of them would be N x L x D."""
    second = helper.make_node("Abs", ["ids"], ["x2"])
    whole = a_selector(second, helper.make_node("Concat", ["x", "x2"], ["y"], axis=0))
    whole.graph.value_info.append(
        helper.make_tensor_value_info("x2", TensorProto.FLOAT, ["batch", 3])
    )
    with pytest.raises(GraphError, match="feed .*Concat.*in one MatMul"):
        graph.split(whole, ["ids"], ["x", "x2"], ["y"])


def test_a_weight_that_both_halves_read_is_one_for_each() -> None:
    """The tracer merges what is equal; what is done to the encoder's weights is its own affair."""
    nodes = [
        helper.make_node("Add", ["z", "w"], ["x"]),
        helper.make_node("MatMul", ["attention_mask", "x"], ["u"]),
        helper.make_node("Add", ["u", "w"], ["y"]),
    ]
    model = a_selector(*nodes)
    model.graph.node[0].output[0] = "z"
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    encoder, pooling = graph.split(model, ["ids", "attention_mask"], ["x"], ["y"])
    assert [tensor.name for tensor in encoder.graph.initializer] == ["w"]
    assert [tensor.name for tensor in pooling.graph.initializer] == ["pooling/w"]
    whole = graph.join(encoder, pooling)
    assert [[*node.input] for node in whole.graph.node if node.op_type == "Add"] == [
        ["z", "w"],
        ["pooling/u", "pooling/w"],
    ]
    onnx.checker.check_model(whole)


def test_a_selector_in_pooled_form_is_split_and_joined() -> None:
    """Cutting and joining gives back a graph with the inputs and outputs it had."""
    node = helper.make_node("MatMul", ["attention_mask", "x"], ["y"])
    encoder, selector = graph.split(a_selector(node), ["ids", "attention_mask"], ["x"], ["y"])
    assert [n.op_type for n in encoder.graph.node] == ["Relu"]
    assert [n.op_type for n in selector.graph.node] == ["MatMul"]
    whole = graph.join(encoder, selector)
    assert [value.name for value in whole.graph.output] == ["y"]
    assert {value.name for value in whole.graph.input} == {"ids", "attention_mask"}
    onnx.checker.check_model(whole)
