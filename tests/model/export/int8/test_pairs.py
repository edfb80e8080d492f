"""Products of rounded matrices are exact on this processor, whatever their tokens are."""

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from s2sent.model.export.graph import OPSET
from s2sent.model.export.int8.pairs import quantize_in_pairs
from s2sent.model.export.int8.storage import quantize_channels

Matrix = NDArray[np.float32]

matrices = st.tuples(
    st.integers(1, 40), st.integers(1, 20), st.integers(0, 2**31), st.sampled_from([1.0, 1e-30, 9])
)


def drawn_matrix(drawn: tuple[int, int, int, float]) -> Matrix:
    """Half of its weights are of one sign, some far larger than the rest."""
    rows, channels, seed, size = drawn
    random = np.random.default_rng(seed)
    weights = random.standard_t(2, (rows, channels))
    weights[:, ::2] = np.abs(weights[:, ::2])
    return (size * weights).astype(np.float32)


def sums_of_pairs(whole: NDArray[np.int8]) -> tuple[int, int]:
    """The most that the positive weights of a pair are together, and the least of the negative."""
    rows, channels = whole.shape
    pairs = np.pad(whole.astype(int), ((0, rows % 2), (0, 0))).reshape(-1, 2, channels)
    return int(np.maximum(pairs, 0).sum(1).max()), int(np.minimum(pairs, 0).sum(1).min())


@given(matrices)
def test_pairs_fit_into_16_bits_with_any_tokens(drawn: tuple[int, int, int, float]) -> None:
    most, least = sums_of_pairs(quantize_in_pairs(drawn_matrix(drawn))[0])
    assert 255 * most <= 2**15 - 1
    assert 255 * least >= -(2**15)


@given(matrices)
def test_each_weight_is_within_half_a_step_and_a_channel_has_most_of_its_steps(
    drawn: tuple[int, int, int, float],
) -> None:
    matrix = drawn_matrix(drawn)
    whole, scale = quantize_in_pairs(matrix)
    assert (np.abs(whole * scale - matrix) <= scale * np.float32(0.50001)).all()
    assert (np.abs(whole.astype(int)).max(axis=0) >= 64).all()  # as many as `reduce_range` has


def test_a_pair_of_other_signs_and_a_single_weight_keep_all_steps() -> None:
    matrix = np.array([[1, 3], [-1, 0], [0.5, 1]], np.float32)
    for found, expected in zip(
        quantize_in_pairs(matrix), quantize_channels(matrix, axis=1), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_a_channel_of_zeros_stays_zero() -> None:
    whole, scale = quantize_in_pairs(np.zeros((3, 2), np.float32))
    assert not whole.any()
    np.testing.assert_array_equal(scale, [[1, 1]])


def product(whole: NDArray[np.int8]) -> ort.InferenceSession:
    """uint8 tokens [n, in] times ``whole`` [in, out], as a graph of int8 products has them."""
    inputs = ["x", "w", "one", "ones", "zero"]
    node = helper.make_node("MatMulIntegerToFloat", inputs, ["y"], domain="com.microsoft")
    stored = [
        numpy_helper.from_array(whole, "w"),
        numpy_helper.from_array(np.array(1, np.float32), "one"),
        numpy_helper.from_array(np.ones(whole.shape[1], np.float32), "ones"),
        numpy_helper.from_array(np.array(128, np.uint8), "zero"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", len(whole)])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", whole.shape[1]])
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "product", [x], [y], stored)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("width", [1, 2, 7, 64, 385])
@pytest.mark.parametrize("channels", [1, 17, 48])
def test_products_are_exact_where_tokens_and_weights_are_largest(width: int, channels: int) -> None:
    """Of weights that are all as large as a pair may be, a weight of 127 beside 1 among them."""
    signs = np.where(np.arange(channels) % 2, 1, -1)
    matrix = np.ones((width, channels), np.float32) * signs
    matrix[::4, ::3] *= 127  # the other one of its pair is 1
    whole, _ = quantize_in_pairs(matrix.astype(np.float32))
    session = product(whole)
    random = np.random.default_rng(0)
    for count in (1, 2, 3, 4, 5, 8, 13):
        for tokens in (
            np.full((count, width), 255),
            np.zeros((count, width)),
            random.choice([0, 255], (count, width)),
        ):
            (found,) = session.run(None, {"x": tokens.astype(np.uint8)})
            expected = (tokens.astype(int) - 128) @ whole.astype(int)
            np.testing.assert_array_equal(found, expected)
