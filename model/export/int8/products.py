"""Matrix products in int8: a packed encoder's matrices and the tokens they multiply are rounded.

    x [..., tokens, in] -> x / channel's factor -> a token's scale = its max / 127
        -> round(x / scale) + 128, as uint8
        -> times the int8 matrix, summed in int32 -> times the channels' scales and the token's

Every token has its own scale, so an embedding does not depend on its batch. ONNX Runtime's dynamic
quantisation has one scale for the whole batch, set by the largest value of any text. Integer sums
are exact in any order, so batch, threads and shapes cannot change them either.

A few channels of a token, always the same, are far larger than the rest, and would leave two or
three bits for the others. Each channel is therefore divided by a factor, and its row of the matrix
multiplied by it: the square root of the channel's range over its row's range (SmoothQuant, arXiv
2211.10438, Eq. 4 with alpha = 0.5). The ranges of channels are measured on sentences.

The operations that stay in float32 (embeddings, attention, normalisation, pooling) differ in the
last bit between processors, which can change a rounding here. Embeddings from two kinds of machine
therefore agree only as well as either agrees with float32; docs/artifact.md has figures.

NaN is lost in the maximum and in int8, but the residual sums around the products propagate it.

Tokens are unsigned with zero point 128, because x86 multiplies unsigned by signed bytes (VNNI); for
two signed factors ONNX Runtime has a loop that takes ten times as long.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from model.export.graph import (
    POOLING,
    drop_unread,
    replace_nodes,
    with_branches,
)
from model.export.int8.storage import MIN_ROUNDED_ELEMENTS, quantize_channels
from model.export.packed.read_early import READ

ZERO_POINT = 128

# A channel's range is this quantile of its absolute values, and at least this share of the median
# range: a channel with small values in the measured sentences may have larger ones elsewhere.
RANGE_QUANTILE = 0.99
LEAST_OF_MEDIAN = 0.5
MEASURED_AT_ONCE = 32  # sentences

_ZERO, _ONE, _STEP = "int8/zero", "int8/one", "int8/step"
_LAST_AXIS, _ZEROS = "int8/last_axis", "int8/zeros"

Ranges = Mapping[str, NDArray[np.float32]]  # [in] by the name of the tokens
Matrices = Mapping[str, NDArray[np.float32]]  # [in, out] by name


def measure_tokens(model: ModelProto, batches: Sequence[Mapping[str, Any]]) -> Ranges:
    """The range of each channel of the packed tokens that are multiplied, by the tokens' name.

    ``batches`` are inputs of the packed encoder ``model``, which has no branches and is unchanged
    afterwards.
    """
    matrices = {tensor.name for tensor in model.graph.initializer if _is_matrix(tensor)}
    products = (node for node in model.graph.node if _is_product(node, matrices))
    names = list(dict.fromkeys(node.input[0] for node in products))
    outputs = [*model.graph.output]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    del model.graph.output[len(outputs) :]
    runs = [session.run(names, _several_texts(batch)) for batch in batches]
    found = {}
    for name, tokens in zip(names, zip(*runs, strict=True), strict=True):
        if tokens[0].ndim > 2 and len(tokens[0]) > 1:  # padded: [batch, length, in]
            continue
        rows = np.concatenate([run.reshape(-1, run.shape[-1]) for run in tokens])
        ranges = np.quantile(np.abs(rows), RANGE_QUANTILE, axis=0)
        found[name] = np.maximum(ranges, LEAST_OF_MEDIAN * np.median(ranges)).astype(np.float32)
    return found


def _several_texts(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs [batch, length], a lone text twice: alone, its tokens are packed in any case."""
    return {name: np.repeat(of, 2, axis=0) if len(of) == 1 else of for name, of in batch.items()}


def multiply_as_int8(graph: GraphProto, ranges: Ranges) -> int:
    """Turn products of packed tokens and matrices into int8 products, in place; returns how many.

    ``ranges`` comes from `measure_tokens`; other tokens, which are padded still, stay in float32,
    as do the pooling's products, Gemm with attributes (it may transpose), and matrices of fewer
    than `MIN_ROUNDED_ELEMENTS`. Products within branches are turned too; what they read is stored
    in ``graph``, which has a product before its first branch.
    """
    matrices = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if _is_matrix(tensor)
    }
    products = [
        node
        for part in with_branches(graph)
        for node in part.node
        if _is_product(node, matrices) and node.input[0] in ranges
    ]
    if not products:
        return 0
    readers: dict[str, list[str]] = {}  # the matrices that multiply each of the tokens
    for node in products:
        readers.setdefault(node.input[0], []).append(node.input[1])
    factors = {
        tokens: _factors(ranges[tokens], [matrices[name] for name in names])
        for tokens, names in readers.items()
    }
    for part in with_branches(graph):
        replace_nodes(part, _with_int8(part, graph, matrices, factors))
    _add_constants(graph)
    drop_unread(graph)
    return len(products)


def _with_int8(
    part: GraphProto, graph: GraphProto, matrices: Matrices, factors: Ranges
) -> list[NodeProto]:
    """The nodes of ``part``, the graph or a branch of it, with int8 products."""
    nodes: list[NodeProto] = []
    rounded: set[str] = set()
    counted = set() if part is graph else {_zeros("")}  # the graph counts them for its branches
    for node in part.node:
        if not _is_product(node, matrices) or node.input[0] not in factors:
            nodes.append(node)
            continue
        tokens, matrix = node.input[:2]
        if _zeros(tokens) not in counted:
            nodes += _count_tokens(tokens)
            counted.add(_zeros(tokens))
        if tokens not in rounded:
            nodes += _round(graph, tokens, factors[tokens])
            rounded.add(tokens)
        _store(graph, node, matrices[matrix] * factors[tokens][:, None])
        nodes += _multiply(node)
    return nodes


def _is_product(node: NodeProto, matrices: Collection[str]) -> bool:
    return node.op_type in ("MatMul", "Gemm") and not node.attribute and node.input[1] in matrices


def _is_matrix(tensor: TensorProto) -> bool:
    return (
        POOLING not in tensor.name  # of twins it has the tower's name in front
        and tensor.data_type == TensorProto.FLOAT
        and len(tensor.dims) == 2
        and bool(np.prod(tensor.dims) >= MIN_ROUNDED_ELEMENTS)
    )


def _factors(
    ranges: NDArray[np.float32], matrices: Sequence[NDArray[np.float32]]
) -> NDArray[np.float32]:
    """The factor that each channel is divided by, with a geometric mean of 1."""
    rows = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    tiny = np.finfo(np.float32).tiny
    factors = np.sqrt(np.maximum(ranges, tiny) / np.maximum(rows, tiny))
    if not (ranges.all() and rows.all()):  # nothing to balance where one side is always zero
        factors[(ranges == 0) | (rows == 0)] = 1
    scaled: NDArray[np.float32] = factors / np.exp(np.log(factors).mean())
    return scaled


def _add_constants(graph: GraphProto) -> None:
    constants: dict[str, NDArray[Any]] = {
        _ZERO: np.array(ZERO_POINT, np.uint8),
        _ONE: np.array(1, np.float32),
        _STEP: np.array(1 / 127, np.float32),
        _LAST_AXIS: np.array([-1], np.int64),
    }
    _add(graph, constants)


def _store(graph: GraphProto, product: NodeProto, matrix: NDArray[np.float32]) -> None:
    """Store a product's matrix as int8; a matrix of several products is stored for each."""
    quantized, scale = quantize_channels(matrix, axis=1)
    int8, channel_scales = _stored(product)
    _add(graph, {int8: quantized, channel_scales: scale.reshape(-1)})


def _add(graph: GraphProto, tensors: Mapping[str, NDArray[Any]]) -> None:
    graph.initializer.extend(numpy_helper.from_array(of, name) for name, of in tensors.items())


def _round(graph: GraphProto, tokens: str, factors: NDArray[np.float32]) -> list[NodeProto]:
    """Nodes that round ``tokens`` [..., tokens, in] to uint8, with scales [..., tokens, 1].

    A token of zeros has the scale 0, which makes its products zeros whatever its bytes are.
    """
    name = {part: f"{tokens}/{part}" for part in ("inverse", "even", "abs", "max", "line")}
    uint8, scales = _rounded(tokens)
    _add(graph, {name["inverse"]: 1 / factors})
    return [
        _node("Mul", [tokens, name["inverse"]], name["even"]),
        _node("Abs", [name["even"]], name["abs"]),
        _node("ReduceMax", [name["abs"], _LAST_AXIS], name["max"]),  # keeps the axis
        _node("Mul", [name["max"], _STEP], scales),
        _node("Reshape", [scales, _LAST_AXIS], name["line"]),
        helper.make_node(
            "QuantizeLinear", [name["even"], name["line"], _zeros(tokens)], [uint8], uint8, axis=-2
        ),
    ]


def _zeros(tokens: str) -> str:
    """The name of the zero points [tokens] of ``tokens``: all of the batch, or those read early."""
    return f"{_ZEROS}{READ}" if tokens.endswith(READ) else _ZEROS


def _count_tokens(tokens: str) -> list[NodeProto]:
    """Nodes that make the zero point of each token, [tokens]."""
    zeros = _zeros(tokens)
    count = f"{zeros}/count"
    return [
        helper.make_node("Shape", [tokens], [count], count, start=-2, end=-1),
        _node("Expand", [_ZERO, count], zeros),
    ]


def _multiply(product: NodeProto) -> list[NodeProto]:
    """``product``, made of its rounded tokens and its stored matrix."""
    bias, result = product.input[2:], product.output[0]
    uint8, scales = _rounded(product.input[0])
    int8, channel_scales = _stored(product)
    by_channel = f"{result}/by_channel"
    summed = helper.make_node(
        "MatMulIntegerToFloat",
        [uint8, int8, _ONE, channel_scales, _ZERO],
        [by_channel],
        by_channel,
        domain="com.microsoft",
    )
    if not bias:
        return [summed, _node("Mul", [by_channel, scales], result)]
    unbiased = f"{result}/unbiased"
    return [
        summed,
        _node("Mul", [by_channel, scales], unbiased),
        _node("Add", [unbiased, bias[0]], result),
    ]


def _rounded(tokens: str) -> tuple[str, str]:
    return f"{tokens}/uint8", f"{tokens}/scales"


def _stored(product: NodeProto) -> tuple[str, str]:
    return f"{product.output[0]}/int8", f"{product.output[0]}/channel_scales"


def _node(operator: str, inputs: list[str], output: str) -> NodeProto:
    return helper.make_node(operator, inputs, [output], output)
