"""Masked attention by ONNX's own operator gives the numbers of ONNX Runtime's."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray
from onnx import TensorProto, helper

from s2sent.model.export.cpu.masked_attention import attend_by_standard_operator

HEADS, WIDTH = 2, 8
PARTS = ("query", "key", "value")
SHAPE = ("n", "l", WIDTH)


def a_model(scale: float | None = None) -> onnx.ModelProto:
    """Attention of ONNX Runtime's kind, over inputs [batch, length, width] and a mask."""
    nodes = [
        helper.make_node("Cast", ["attention_mask"], ["int32"], to=TensorProto.INT32),
        helper.make_node(
            "MultiHeadAttention",
            [*PARTS, "", "int32"],
            ["y"],
            domain="com.microsoft",
            num_heads=HEADS,
            scale=scale,
        ),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in PARTS]
    inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["n", "l"]))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "attention", inputs, [output])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(
    model: onnx.ModelProto, mask: NDArray[np.int64], **more: NDArray[np.float32]
) -> NDArray[np.float32]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(0)
    parts = {name: draw.normal(size=(*mask.shape, WIDTH)).astype(np.float32) for name in PARTS}
    values: NDArray[np.float32] = session.run(["y"], parts | more | {"attention_mask": mask})[0]
    return values


def masks() -> st.SearchStrategy[NDArray[np.int64]]:
    """Of 0 and 1, with a token at least in each row, wherever the others are."""
    shapes = st.tuples(st.integers(1, 4), st.integers(1, 9))
    drawn = shapes.flatmap(lambda shape: npst.arrays(np.int64, shape, elements=st.integers(0, 1)))
    return drawn.map(lambda mask: np.where(mask.any(axis=1, keepdims=True), mask, 1))


@settings(max_examples=30)
@given(masks(), st.sampled_from([None, 0.25]))
def test_the_values_are_those_of_onnx_runtimes_operator(
    mask: NDArray[np.int64], scale: float | None
) -> None:
    model = a_model(scale)
    expected = run(model, mask)
    assert attend_by_standard_operator(model) == 1
    onnx.checker.check_model(model)
    np.testing.assert_allclose(run(model, mask), expected, atol=1e-6)


def test_a_hidden_token_changes_nothing_however_it_would_score() -> None:
    model = a_model()
    attend_by_standard_operator(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    seen = {name: np.ones((1, 3, WIDTH), np.float32) for name in PARTS}
    mask = np.array([[1, 1, 0]])
    other = {name: values.copy() for name, values in seen.items()}
    other["key"][0, 2], other["value"][0, 2] = 4, -100
    first, second = (
        session.run(["y"], parts | {"attention_mask": mask})[0][0, :2] for parts in (seen, other)
    )
    np.testing.assert_array_equal(first, second)


def test_a_bias_in_place_of_the_mask_gives_the_same_numbers() -> None:
    model = a_model()
    model.graph.node[1].input[4:] = ["", "bias"]
    shape = ("n", 1, "l", "l")
    model.graph.input.append(helper.make_tensor_value_info("bias", TensorProto.FLOAT, shape))
    draw = np.random.default_rng(0)
    hidden = draw.random((2, 1, 5, 5)) < 0.5
    bias = np.where(hidden, np.finfo(np.float32).min, draw.normal(size=hidden.shape))
    more = {"bias": bias.astype(np.float32)}
    expected = run(model, np.ones((2, 5), np.int64), **more)
    assert attend_by_standard_operator(model) == 1
    onnx.checker.check_model(model)
    found = run(model, np.ones((2, 5), np.int64), **more)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    "changed", ["unidirectional", "without a mask", "by another mask", "with a bias too"]
)
def test_another_attention_is_left_alone(changed: str) -> None:
    model = a_model()
    (attention,) = (node for node in model.graph.node if node.op_type == "MultiHeadAttention")
    if changed == "unidirectional":
        attention.attribute.append(helper.make_attribute("unidirectional", 1))
    elif changed == "without a mask":
        attention.input[4] = ""
    elif changed == "by another mask":
        attention.input[4] = "other"
    else:
        attention.input.append("bias")
    before = model.SerializeToString()
    assert attend_by_standard_operator(model) == 0
    assert model.SerializeToString() == before
