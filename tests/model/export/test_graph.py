"""Graph surgery keeps what a graph computes, and refuses a graph of the wrong shape."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from s2sent.model.export import graph
from s2sent.model.export.graph import GraphError
from s2sent.model.export.nodes import constants_of, dependents_of, makers_of


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


def test_an_output_that_is_left_out_connects_no_nodes() -> None:
    """Its name is empty, and so is that of an input that is left out, to which it is not joined."""
    nodes = [
        helper.make_node("Dropout", ["ids"], ["kept", ""]),
        helper.make_node("Clip", ["kept", "", "most"], ["clipped"]),
        helper.make_node("Clip", ["mask", "", "most"], ["other"]),
        helper.make_node("Clip", ["least", "", "most"], ["weight"]),
    ]
    weights = [numpy_helper.from_array(np.array(1, np.float32), name) for name in ("least", "most")]
    parts = helper.make_graph(nodes, "test", [], [], weights)
    assert makers_of(parts, ["other"]) == {2}
    assert dependents_of(parts, "ids") == {0, 1}
    assert constants_of(parts) == {"least", "most", "weight"}
