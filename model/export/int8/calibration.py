"""How the tokens of a packed encoder are rounded to uint8, measured on sentences.

A few channels of a token, always the same, are far larger than the rest, and would leave two or
three bits for the others. Each channel is therefore divided by a factor, and its row of the matrix
multiplied by it: the channel's range to the power of 0.65 over its row's range to the power of 0.35
(SmoothQuant, arXiv 2211.10438, Eq. 4 with alpha = 0.65).

Every way of rounding costs other operators around a product. The measured tokens are rounded in all
of them, and the cheapest is taken whose products are nearly as exact as the most exact one's.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from s2sent.model.export.graph import POOLING
from s2sent.model.export.int8.pairs import quantize_in_pairs
from s2sent.model.export.int8.storage import MIN_ROUNDED_ELEMENTS, quantize_channels

MEASURED_AT_ONCE = 32  # sentences

ALPHA = 0.65  # of SmoothQuant; 0.5 to 0.7 are alike where each token has its own scale
# A channel's range is this quantile of its absolute values, and at least this share of the median
# range: a channel with small values in the measured sentences may have larger ones elsewhere.
RANGE_QUANTILE = 0.99
LEAST_OF_MEDIAN = 0.5
# How many times the squared error of the most exact way a cheaper one may make: one scale for all
# tokens, which saves five operators around a product, and any other.
MOST_OF_ONE_SCALE = 2.4
MOST_OF_OTHERS = 1.5
LEAST_MEASURED = 256  # tokens that show how large others become
COMPARED = 256  # tokens by which the ways of rounding are compared

# How one-sided tokens, such as Gelu's, are written as bytes: what stands for 0, and steps above.
ONE_SIDED_ZERO = 24
ONE_SIDED_STEPS = 255 - ONE_SIDED_ZERO
SYMMETRIC_STEPS = 127

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Rounding:
    """How tokens [..., in] are rounded.

    factors: what each channel is divided by, [in], with a geometric mean of 1; None: by nothing.
    largest: the one size of all tokens, after the division; None: each token has its own.
    least: what no component of one-sided tokens is below; None: tokens are symmetric.
    """

    factors: Matrix | None = None
    largest: float | None = None
    least: float | None = None

    def divided(self, tokens: Matrix) -> Matrix:
        """Tokens with each channel divided by its factor."""
        return tokens if self.factors is None else tokens / self.factors

    def balanced(self, matrix: Matrix) -> Matrix:
        """The matrix [in, out] that divided tokens meet."""
        return matrix if self.factors is None else matrix * self.factors[:, None]

    def weights(self, matrix: Matrix) -> tuple[NDArray[np.int8], Matrix]:
        """The balanced matrix as int8, and its channels' scales."""
        return quantize_in_pairs(self.balanced(matrix))

    def rounded(self, tokens: Matrix) -> tuple[Matrix, Matrix]:
        """Tokens [n, in] as whole numbers, 0 for 0, and what a step is worth, [n or 1, 1]."""
        divided = self.divided(tokens)
        if self.least is not None:
            steps = divided.max(axis=1, keepdims=True) / ONE_SIDED_STEPS
            steps = np.maximum(steps, -self.least / ONE_SIDED_ZERO)
            below, above = -ONE_SIDED_ZERO, ONE_SIDED_STEPS
        else:
            sizes = np.abs(divided).max(axis=1, keepdims=True)
            if self.largest is not None:
                sizes = np.full((1, 1), self.largest, np.float32)
            steps = sizes / SYMMETRIC_STEPS
            below, above = -SYMMETRIC_STEPS - 1, SYMMETRIC_STEPS
        whole = np.rint(divided / np.where(steps > 0, steps, 1))
        return np.clip(whole, below, above).astype(np.float32), steps.astype(np.float32)


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
    if not np.isfinite(tokens).all():  # of a broken encoder, of which the check of parity tells
        return Rounding()
    joint = np.concatenate(matrices, axis=1)
    compared = tokens[:: max(1, len(tokens) // COMPARED)]
    choices = _choices(tokens, joint)  # the cheapest first
    errors = [_squared_error(each, compared, joint) for each in choices]
    return next(
        choice
        for choice, error in zip(choices, errors, strict=True)
        if error <= (MOST_OF_ONE_SCALE if choice.largest else MOST_OF_OTHERS) * min(errors)
    )


def _choices(tokens: Matrix, matrix: Matrix) -> list[Rounding]:
    """Ways to round tokens, from the fewest operators to the most."""
    ranges = np.quantile(np.abs(tokens), RANGE_QUANTILE, axis=0)
    ranges = np.maximum(ranges, LEAST_OF_MEDIAN * np.median(ranges)).astype(np.float32)
    balanced = Rounding(_factors(ranges, matrix))
    choices = [Rounding(), balanced]
    least = min(0.0, float(tokens.min()))
    if -least * ONE_SIDED_STEPS <= float(np.median(tokens.max(axis=1))) * ONE_SIDED_ZERO:
        choices.insert(0, Rounding(least=least))
    largest = float(np.abs(balanced.divided(tokens)).max())
    if largest > 0 and len(tokens) >= LEAST_MEASURED:
        choices.insert(0, Rounding(balanced.factors, largest))
    return choices


def _squared_error(rounding: Rounding, tokens: Matrix, matrix: Matrix) -> float:
    """The mean square of what rounding changes in the products of tokens and a matrix.

    Weights have all steps here: beside the error of fewer, as they are stored with, a poor way to
    round tokens looks as good as others.
    """
    whole, steps = rounding.rounded(tokens)
    weights, scales = quantize_channels(rounding.balanced(matrix), axis=1)
    products = (whole @ weights.astype(np.float32)) * scales * steps
    return float(np.mean((products - tokens @ matrix) ** 2))


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


def _factors(ranges: Matrix, matrix: Matrix) -> Matrix:
    """The factor that each channel is divided by, with a geometric mean of 1."""
    rows = np.abs(matrix).max(axis=1)
    tiny = np.finfo(np.float32).tiny
    factors = np.maximum(ranges, tiny) ** ALPHA / np.maximum(rows, tiny) ** (1 - ALPHA)
    if not (ranges.all() and rows.all()):  # nothing to balance where one side is always zero
        factors[(ranges == 0) | (rows == 0)] = 1
    scaled: Matrix = factors / np.exp(np.log(factors).mean())
    return scaled
