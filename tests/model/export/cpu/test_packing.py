"""Packed tokens give what padded rows give, and what cannot be packed is left alone."""

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from s2sent.model.export.cpu.packing import add_biases_in_products, pack
from s2sent.model.export.graph import OPSET

WIDTH, HEADS = 8, 2
HIDDEN = 2 * WIDTH

Mask = list[list[int]]

# Padding on the right, on the left and between tokens; a row has a token at least.
masks = st.integers(1, 7).flatmap(
    lambda length: st.lists(
        st.lists(st.integers(0, 1), min_size=length, max_size=length).filter(any),
        min_size=1,
        max_size=5,
    )
)


def weights() -> dict[str, NDArray[np.float32]]:
    shapes = {
        "table": (50, WIDTH),
        "qkv": (WIDTH, 3 * WIDTH),
        "qkv_bias": (3 * WIDTH,),
        "up": (WIDTH, HIDDEN),
        "up_bias": (HIDDEN,),
        "down": (HIDDEN, WIDTH),
        "scale": (WIDTH,),
        "shift": (WIDTH,),
    }
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def attention(states: str, result: str, *more: str, unidirectional: int = 0) -> NodeProto:
    inputs = [states, "qkv", "qkv_bias", "mask32", *more]
    node = helper.make_node("Attention", inputs, [result], domain="com.microsoft", num_heads=HEADS)
    if unidirectional:
        node.attribute.append(helper.make_attribute("unidirectional", unidirectional))
    return node


def block(states: str, result: str) -> list[NodeProto]:
    own = [f"{result}/{number}" for number in range(5)]
    return [
        attention(states, own[0]),
        helper.make_node("Add", [own[0], states], [own[1]]),
        helper.make_node("LayerNormalization", [own[1], "scale", "shift"], [own[2]], axis=-1),
        helper.make_node("MatMul", [own[2], "up"], [own[3]]),
        helper.make_node("BiasGelu", [own[3], "up_bias"], [own[4]], domain="com.microsoft"),
        helper.make_node("MatMul", [own[4], "down"], [result]),
    ]


def an_encoder(*nodes: NodeProto, outputs: tuple[str, ...] = ("last",)) -> onnx.ModelProto:
    """input_ids, attention_mask [batch, length] -> embedding -> ``nodes`` -> ``outputs``."""
    first = [
        helper.make_node("Cast", ["attention_mask"], ["mask32"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "input_ids"], ["embedding"], axis=0),
    ]
    axes = ["batch", "length"]
    graph = helper.make_graph(
        [*first, *nodes],
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, axes)
         for name in ("input_ids", "attention_mask")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [*axes, WIDTH])
         for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights().items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(model: onnx.ModelProto, mask: Mask, *outputs: str) -> list[NDArray[np.float32]]:
    options = ort.SessionOptions()
    options.log_severity_level = 3  # of weights that no node reads
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    ids = np.arange(np.size(mask)).reshape(np.shape(mask)) % 50
    inputs = {"input_ids": ids, "attention_mask": np.array(mask, np.int64)}
    results: list[NDArray[np.float32]] = session.run(list(outputs) or None, inputs)
    return results


@given(masks)
def test_tokens_have_the_states_they_had(mask: Mask) -> None:
    nodes = [*block("embedding", "first"), *block("first", "last")]
    outputs = ("embedding", "first", "last")
    padded, packed = (an_encoder(*nodes, outputs=outputs) for _ in range(2))
    assert pack(packed.graph)
    onnx.checker.check_model(packed)
    tokens = np.array(mask, bool)
    for before, after in zip(run(padded, mask), run(packed, mask), strict=True):
        assert before.shape == after.shape
        assert np.isfinite(after).all()
        np.testing.assert_allclose(after[tokens], before[tokens], rtol=1e-4, atol=1e-4)


@given(masks)
def test_a_product_adds_the_bias_of_gelu(mask: Mask) -> None:
    before, after = (an_encoder(*block("embedding", "last")) for _ in range(2))
    for model in (before, after):
        assert pack(model.graph)
    assert add_biases_in_products(after.graph) == 1
    onnx.checker.check_model(after)
    operators = [node.op_type for node in after.graph.node]
    assert ("Gelu" in operators, "BiasGelu" in operators) == (True, False)
    for one, other in zip(run(before, mask), run(after, mask), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)


def test_a_product_that_something_else_reads_keeps_its_bias_behind_it() -> None:
    nodes = [*block("embedding", "last"), helper.make_node("Relu", ["last/3"], ["other"])]
    model = an_encoder(*nodes)
    assert pack(model.graph)
    assert add_biases_in_products(model.graph) == 0


def test_only_attention_works_on_padding() -> None:
    """Every other value in a block has one row for each token of the batch."""
    model = an_encoder(*block("embedding", "last"))
    assert pack(model.graph)
    names = [
        node.output[0]
        for node in model.graph.node
        if node.op_type in ("Gemm", "Add", "LayerNormalization", "MatMul", "BiasGelu")
    ]
    assert len(names) == 1 + 5  # query, key and value are one product
    model.graph.output.extend(map(helper.make_empty_tensor_value_info, names))
    mask = [[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    assert {len(value) for value in run(model, mask, *names)} == {8}


def test_a_row_does_not_depend_on_the_others() -> None:
    model = an_encoder(*block("embedding", "first"), *block("first", "last"))
    assert pack(model.graph)
    alone = run(model, [[1, 1, 1, 0, 0, 0]])[0][0]
    together = run(model, [[1, 1, 1, 0, 0, 0], [1] * 6, [0, 0, 0, 0, 1, 1]])[0][0]
    np.testing.assert_allclose(together[:3], alone[:3], atol=1e-5)


def no_attention() -> list[NodeProto]:
    return block("embedding", "last")[3:]


def a_mean_over_tokens() -> list[NodeProto]:
    mean = helper.make_node("ReduceMean", ["first", "axis"], ["mean"], keepdims=1)
    axis = helper.make_node("Constant", [], ["axis"], value_ints=[1])
    both = helper.make_node("Add", ["first", "mean"], ["last"])
    return [*block("embedding", "first"), axis, mean, both]


def another_axis() -> list[NodeProto]:
    nodes = block("embedding", "last")
    nodes[2].attribute[0].i = 2
    return nodes


def a_weight_with_three_axes() -> list[NodeProto]:
    wide = numpy_helper.from_array(np.ones((1, 1, WIDTH), np.float32))
    constant = helper.make_node("Constant", [], ["wide"], value=wide)
    both = helper.make_node("Add", ["first", "wide"], ["last"])
    return [*block("embedding", "first"), constant, both]


def a_product_of_states() -> list[NodeProto]:
    turned = helper.make_node("Transpose", ["embedding"], ["turned"], perm=[0, 2, 1])
    product = helper.make_node("MatMul", ["first", "turned"], ["square"])
    back = helper.make_node("MatMul", ["square", "first"], ["last"])
    return [*block("embedding", "first"), turned, product, back]


def attention_to_the_past() -> list[NodeProto]:
    return [attention("embedding", "last", unidirectional=1)]


def attention_with_a_bias() -> list[NodeProto]:
    bias = helper.make_node("Constant", [], ["bias"], value_floats=[0.0])
    return [bias, attention("embedding", "last", "", "bias")]


@pytest.mark.parametrize(
    "nodes",
    [
        no_attention,
        a_mean_over_tokens,
        another_axis,
        a_weight_with_three_axes,
        a_product_of_states,
        attention_to_the_past,
        attention_with_a_bias,
    ],
    ids=lambda nodes: nodes.__name__,
)
def test_what_looks_at_several_tokens_is_left_alone(nodes: Callable[[], list[NodeProto]]) -> None:
    model = an_encoder(*nodes())
    before = model.SerializeToString()
    assert not pack(model.graph)
    assert model.SerializeToString() == before
