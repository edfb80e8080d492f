"""Products of whole numbers: the matrices of a packed encoder, and the tokens they meet, as int8.

    x [tokens, in] -> a token's scale = max|x| / 127 -> round(x / scale) + 128, as uint8
        -> times the int8 matrix, summed in int32 -> times the channels' scales and the token's

Every token has a scale of its own. ONNX Runtime's own dynamic quantisation takes one for the whole
batch, so that the loudest token of any text decides how finely all others are rounded; here no text
sees another. Sums of whole numbers are exact in any order, so batches, threads and shapes cannot
move them either.

What remains in float32 (embeddings, attention between tokens, normalisation, pooling) is rounded
differently by different processors, in the last bit. A last bit can decide a rounding here, so
embeddings of two kinds of machine agree only as well as either does with float32, unlike the other
precisions. docs/artifact.md has figures.

A maximum passes over NaN, and a byte has none. A block's sums around its products carry it on.

Tokens are unsigned, with 128 for zero, because x86 multiplies unsigned by signed bytes (VNNI); of
two signed factors ONNX Runtime makes a loop that takes ten times as long.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from model.graph import MIN_ROUNDED_ELEMENTS, quantize_channels

ZERO_POINT = 128
_ZERO, _ONE, _STEP = "int8/zero", "int8/one", "int8/step"
_SMALLEST, _LAST_AXIS, _LINE = "int8/smallest", "int8/last_axis", "int8/line"


def multiply_as_int8(graph: GraphProto) -> int:
    """Turn the products of packed tokens with matrices into products of int8, in place.

    Returns how many. The matrices should lie on the grid of `model.graph.round_channels`: they are
    rounded to it. Gemm with attributes, which may transpose, and matrices of fewer than
    `MIN_ROUNDED_ELEMENTS` are left as they are.
    """
    matrices = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT
        and len(tensor.dims) == 2
        and np.prod(tensor.dims) >= MIN_ROUNDED_ELEMENTS
    }
    nodes: list[NodeProto] = []
    rounded: set[str] = set()  # tokens, of which several products may be made
    replaced: set[str] = set()  # matrices
    for node in graph.node:
        if not _is_product(node) or node.input[1] not in matrices:
            nodes.append(node)
            continue
        tokens, matrix = node.input[:2]
        if tokens not in rounded:
            nodes += _round(tokens)
            rounded.add(tokens)
        if matrix not in replaced:
            _store(graph, matrices[matrix])
            replaced.add(matrix)
        nodes += _multiply(node)
    if not replaced:
        return 0
    _add_constants(graph)
    read = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    copies = helper.make_graph(nodes, graph.name, [], [], kept)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(copies.node)
    graph.initializer.extend(copies.initializer)
    return len(replaced)


def _is_product(node: NodeProto) -> bool:
    return node.op_type in ("MatMul", "Gemm") and not node.attribute


def _add_constants(graph: GraphProto) -> None:
    constants: dict[str, NDArray[Any]] = {
        _ZERO: np.array(ZERO_POINT, np.uint8),
        _ONE: np.array(1, np.float32),
        _STEP: np.array(1 / 127, np.float32),
        _SMALLEST: np.array(1e-20, np.float32),  # a token of zeros has no scale of its own
        _LAST_AXIS: np.array([-1], np.int64),
        _LINE: np.array([-1], np.int64),
    }
    graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items()
    )


def _store(graph: GraphProto, matrix: TensorProto) -> None:
    quantized, scale = quantize_channels(numpy_helper.to_array(matrix), axis=1)
    parts: dict[str, NDArray[Any]] = {"int8": quantized, "scale": scale.reshape(-1)}
    graph.initializer.extend(
        numpy_helper.from_array(values, f"{matrix.name}_{part}") for part, values in parts.items()
    )


def _round(tokens: str) -> list[NodeProto]:
    """Nodes that make of ``tokens`` [tokens, in] its uint8 and its scales [tokens, 1]."""
    name = {
        part: f"{tokens}/{part}" for part in ("abs", "max", "largest", "line", "shape", "zeros")
    }
    uint8, scales = _rounded(tokens)
    return [
        _node("Abs", [tokens], name["abs"]),
        _node("ReduceMax", [name["abs"], _LAST_AXIS], name["max"]),  # keeps the axis
        _node("Max", [name["max"], _SMALLEST], name["largest"]),
        _node("Mul", [name["largest"], _STEP], scales),
        _node("Reshape", [scales, _LINE], name["line"]),
        _node("Shape", [name["line"]], name["shape"]),
        _node("Expand", [_ZERO, name["shape"]], name["zeros"]),
        helper.make_node(
            "QuantizeLinear", [tokens, name["line"], name["zeros"]], [uint8], uint8, axis=0
        ),
    ]


def _multiply(node: NodeProto) -> list[NodeProto]:
    """``node``, made of its rounded tokens and its stored matrix."""
    (tokens, matrix), bias, result = node.input[:2], node.input[2:], node.output[0]
    uint8, scales = _rounded(tokens)
    by_channel = f"{result}/by_channel"
    product = helper.make_node(
        "MatMulIntegerToFloat",
        [uint8, f"{matrix}_int8", _ONE, f"{matrix}_scale", _ZERO],
        [by_channel],
        by_channel,
        domain="com.microsoft",
    )
    if not bias:
        return [product, _node("Mul", [by_channel, scales], result)]
    unbiased = f"{result}/unbiased"
    return [
        product,
        _node("Mul", [by_channel, scales], unbiased),
        _node("Add", [unbiased, bias[0]], result),
    ]


def _rounded(tokens: str) -> tuple[str, str]:
    return f"{tokens}/uint8", f"{tokens}/scales"


def _node(operator: str, inputs: list[str], output: str) -> NodeProto:
    return helper.make_node(operator, inputs, [output], output)
