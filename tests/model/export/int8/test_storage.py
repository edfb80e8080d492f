"""Weights stored as int8 are those on its grid, and compute what they did."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from s2sent.model.export.graph import OPSET, GraphError
from s2sent.model.export.int8.storage import round_channels, store_int8

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
        opset_imports=[helper.make_opsetid("", OPSET)],
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


@pytest.mark.parametrize("turned", [False, True])
def test_a_gemm_keeps_the_grid_of_its_output_channels_in_both_layouts(turned: bool) -> None:
    """[in, out], or [out, in] where transB says so."""
    weight = round_channels(a_weight(WIDTH, 32), axis=1)
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=int(turned))
    weights = {"w": weight.T.copy() if turned else weight, "b": a_weight(1, 32)[0]}
    model = a_graph(node, weights=weights)
    x = a_weight(5)
    before = run(model, x)
    assert store_int8(model) == 1
    np.testing.assert_allclose(run(model, x), before, rtol=1e-5, atol=1e-6)
    scale = next(t for t in model.graph.initializer if t.name == "w_scale")
    assert list(scale.dims) == ([32, 1] if turned else [1, 32])


def test_weights_off_the_grid_are_refused() -> None:
    """Storing as int8 never rounds by itself: torch must have computed with the same weights."""
    model = a_graph(helper.make_node("MatMul", ["x", "w"], ["y"]), weights={"w": a_weight()})
    with pytest.raises(GraphError, match="w is not on the int8 grid"):
        store_int8(model)


def test_small_matrices_keep_their_precision() -> None:
    """A matrix below the threshold is stored as it is."""
    model = a_graph(helper.make_node("MatMul", ["x", "w"], ["y"]), weights={"w": a_weight(64, 2)})
    assert store_int8(model) == 0


def test_a_table_of_distances_is_left_as_it_is() -> None:
    """It is looked up along its last axis, as MPNet's bias of 12 heads, and was never rounded."""
    table = a_weight(12, 257)
    model = a_graph(
        helper.make_node("Gather", ["table", "distances"], ["y"], axis=1),
        weights={"table": table, "distances": np.zeros(4, np.int64)},
    )
    assert store_int8(model) == 0
    assert np.array_equal(numpy_helper.to_array(model.graph.initializer[0]), table)
