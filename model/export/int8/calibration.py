"""How the tokens of a packed encoder are rounded to uint8, measured on sentences.

A few channels of a token, always the same, are far larger than the rest, and would leave two or
three bits for the others. Each channel is therefore divided by a factor, and its row of the matrix
multiplied by it: the square root of the channel's range over its row's range (SmoothQuant, arXiv
2211.10438, Eq. 4 with alpha = 0.5).

Tokens that differ little in size have one scale, that of the largest measured one; a larger token
of another text is cut off at it. All others have a scale for each token.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from model.export.graph import POOLING
from model.export.int8.storage import MIN_ROUNDED_ELEMENTS

MEASURED_AT_ONCE = 32  # sentences

# A channel's range is this quantile of its absolute values, and at least this share of the median
# range: a channel with small values in the measured sentences may have larger ones elsewhere.
RANGE_QUANTILE = 0.99
LEAST_OF_MEDIAN = 0.5
# The largest token over the usual one (root mean square) up to which one scale serves all: seven
# operators less around a product, for a tenth more of the error that rounding makes
# (benchmarks/journal/2026-11-24-int8-rounding.md).
MOST_UNEVEN = 2.0
LEAST_MEASURED = 256  # tokens that show how large others become
# Tokens are counted from their least value where steps are at most this share of what they are
# from minus the largest to the largest: those of Gelu and Relu, half.
ONE_SIDED = 0.75

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Rounding:
    """How tokens [..., in] are rounded.

    factors: what each channel is divided by, [in], with a geometric mean of 1.
    largest: the one size of all tokens, after the division; None: each token's own.
    least: what no component is below, before the division, and 0 stands for; None: 0 stands for
        minus the size.
    """

    factors: Matrix
    largest: float | None = None
    least: float | None = None

    @property
    def shift(self) -> Matrix | None:
        """What is added to the divided tokens, [in]."""
        return None if self.least is None else np.float32(-self.least) / self.factors

    def sizes(self, tokens: Matrix) -> Matrix:
        """The size of each of ``tokens`` [n, in]: the largest that is rounded of it."""
        divided = tokens / self.factors
        found: Matrix = np.max(
            np.abs(divided) if self.shift is None else divided + self.shift, axis=1
        )
        return found


Roundings = Mapping[str, Rounding]  # by the name of the tokens


def measure_tokens(model: ModelProto, batches: Sequence[Mapping[str, Any]]) -> dict[str, Rounding]:
    """How the packed tokens that are multiplied by matrices are rounded, by the tokens' name.

    ``batches`` are inputs of the packed encoder ``model``, which has no branches and is unchanged
    afterwards. Tokens that are padded still are left out.
    """
    matrices = matrices_of(model.graph)
    readers: dict[str, list[Matrix]] = {}
    for node in model.graph.node:
        if is_product(node, matrices):
            readers.setdefault(node.input[0], []).append(matrices[node.input[1]])
    return {
        name: rounding_of(tokens, readers[name])
        for name, tokens in _tokens(model, [*readers], batches)
    }


def rounding_of(tokens: Matrix, matrices: Sequence[Matrix]) -> Rounding:
    """How tokens such as ``tokens`` [n, in] are rounded, which meet ``matrices`` [in, out]."""
    ranges = np.quantile(np.abs(tokens), RANGE_QUANTILE, axis=0)
    ranges = np.maximum(ranges, LEAST_OF_MEDIAN * np.median(ranges)).astype(np.float32)
    signed = Rounding(_factors(ranges, matrices))
    unsigned = Rounding(signed.factors, least=float(tokens.min()))
    sizes, above = signed.sizes(tokens), unsigned.sizes(tokens)
    if _usual(above) / 255 <= ONE_SIDED * _usual(sizes) / 127:
        return unsigned
    if len(tokens) >= LEAST_MEASURED and 0 < sizes.max() <= MOST_UNEVEN * _usual(sizes):
        return Rounding(signed.factors, largest=float(sizes.max()))
    return signed


def _usual(sizes: Matrix) -> float:
    return float(np.sqrt(np.mean(sizes**2)))


def is_product(node: NodeProto, matrices: Collection[str]) -> bool:
    """Whether ``node`` multiplies tokens by one of ``matrices``, as it is."""
    return node.op_type in ("MatMul", "Gemm") and not node.attribute and node.input[1] in matrices


def matrices_of(graph: GraphProto) -> dict[str, Matrix]:
    """The matrices [in, out] that int8 suits, by name: not the pooling's, nor small ones."""
    return {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if POOLING not in tensor.name  # of twins it has the tower's name in front
        and tensor.data_type == TensorProto.FLOAT
        and len(tensor.dims) == 2
        and np.prod(tensor.dims) >= MIN_ROUNDED_ELEMENTS
    }


def _tokens(
    model: ModelProto, names: Sequence[str], batches: Sequence[Mapping[str, Any]]
) -> list[tuple[str, Matrix]]:
    """The rows [n, in] of all batches, by name."""
    outputs = len(model.graph.output)
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    del model.graph.output[outputs:]
    runs = [session.run(names, _several_texts(batch)) for batch in batches]
    return [
        (name, np.concatenate([run.reshape(-1, run.shape[-1]) for run in found]))
        for name, found in zip(names, zip(*runs, strict=True), strict=True)
        if found[0].ndim == 2 or len(found[0]) == 1  # others are padded: [batch, length, in]
    ]


def _several_texts(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs [batch, length], a lone text twice: alone, its tokens are packed in any case."""
    return {name: np.repeat(of, 2, axis=0) if len(of) == 1 else of for name, of in batch.items()}


def _factors(ranges: Matrix, matrices: Sequence[Matrix]) -> Matrix:
    """The factor that each channel is divided by, with a geometric mean of 1."""
    rows = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    tiny = np.finfo(np.float32).tiny
    factors = np.sqrt(np.maximum(ranges, tiny) / np.maximum(rows, tiny))
    if not (ranges.all() and rows.all()):  # nothing to balance where one side is always zero
        factors[(ranges == 0) | (rows == 0)] = 1
    scaled: Matrix = factors / np.exp(np.log(factors).mean())
    return scaled
