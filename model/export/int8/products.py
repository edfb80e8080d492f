"""Matrix products in int8: a packed encoder's matrices and the tokens they multiply are rounded.

    x [..., tokens, in] -> x / channel's factor -> a token's scale = its max / 127
        -> round(x / scale) + 128, as uint8
        -> times the int8 matrix, summed in int32 -> times the channels' scales and the token's

Every token has its own scale, or all tokens of all texts have one; `calibration` chooses, and where
a division by factors pays. So an embedding does not depend on its batch. ONNX Runtime's dynamic
quantisation has one scale for the whole batch, set by the largest value of any text. Integer sums
are exact in any order, so batch, threads and shapes cannot change them either.

An activation such as Gelu is never far below zero. It has 231 of the 255 steps above zero, and a
scale at which its least value is within the other 24:

    x -> a token's scale = max(its max / 231, -least / 24) -> round(x / scale) + 24, as uint8

The operations that stay in float32 (embeddings, attention, normalisation, pooling) differ in the
last bit between processors, which can change a rounding here. Embeddings from two kinds of machine
therefore agree only as well as either agrees with float32; docs/artifact.md has figures.

NaN is lost in the maximum and in int8, but the residual sums around the products propagate it.

Tokens are unsigned, because x86 multiplies unsigned by signed bytes; for two signed factors ONNX
Runtime has a loop that takes ten times as long. `pairs` has the matrices fit processors without
VNNI.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, numpy_helper

from s2sent.model.export.int8.calibration import (
    ONE_SIDED_STEPS,
    ONE_SIDED_ZERO,
    SYMMETRIC_STEPS,
    Rounding,
    Roundings,
    is_product,
    matrices_of,
)
from s2sent.model.export.nodes import drop_unread, make_op, refill, with_branches
from s2sent.model.export.packed.read_early import READ

_ONE, _LAST_AXIS = "int8/one", "int8/last_axis"


@dataclass(frozen=True)
class _Bytes:
    """How numbers are written as uint8: what stands for 0, and the steps above it."""

    name: str
    zero_point: int
    steps: int

    @property
    def step(self) -> str:
        """The name of a step's size where the largest is 1."""
        return f"int8/{self.name}/step"

    @property
    def zero(self) -> str:
        """The name of the zero point."""
        return f"int8/{self.name}/zero"

    def zeros(self, tokens: str) -> str:
        """The name of the zero points [tokens]: all of the batch, or those that are read early."""
        return f"{self.zero}s{READ if tokens.endswith(READ) else ''}"


_SYMMETRIC = _Bytes("symmetric", 128, SYMMETRIC_STEPS)
_ONE_SIDED = _Bytes("one_sided", ONE_SIDED_ZERO, ONE_SIDED_STEPS)


def multiply_as_int8(graph: GraphProto, roundings: Roundings) -> int:
    """Turn products of packed tokens and matrices into int8 products, in place; returns how many.

    ``roundings`` comes from `model.export.int8.calibration.measure_tokens`; other tokens, which are
    padded still, stay in float32, as do the pooling's products, Gemm with attributes (it may
    transpose), and matrices of fewer than `MIN_ROUNDED_ELEMENTS`. Products within branches are
    turned too; what they read is stored in ``graph``, which has a product before its first branch.
    """
    products = _Products(graph, roundings)
    for part in with_branches(graph):
        refill(part.node, products.turned(part))
    if products.count:
        products.add_constants()
        drop_unread(graph)
    return products.count


class _Products:
    """The products of a graph and its branches that become int8 products."""

    def __init__(self, graph: GraphProto, roundings: Roundings) -> None:
        self._graph = graph
        self._roundings = roundings
        self._matrices = matrices_of(graph)
        self._vectors = {
            tensor.name: numpy_helper.to_array(tensor)
            for tensor in graph.initializer
            if len(tensor.dims) == 1
        }
        self._sums = self._find_sums()
        self.count = 0

    def turned(self, part: GraphProto) -> list[NodeProto]:
        """The nodes of ``part``, the graph or a branch of it, with int8 products."""
        nodes: list[NodeProto] = []
        made: set[str] = set()
        if part is not self._graph:  # which counts tokens for its branches
            made |= {_SYMMETRIC.zeros(""), _ONE_SIDED.zeros("")}
        sums = {node.output[0] for node in self._sums.values()}
        for node in part.node:
            if self._is_turned(node):
                tokens = node.input[0]
                if tokens not in made:
                    nodes += _count_tokens(tokens, _kind(self._roundings[tokens]), made)
                    nodes += self._round(tokens)
                    made.add(tokens)
                nodes += self._multiply(node)
                self.count += 1
            elif sums.isdisjoint(node.output):
                nodes.append(node)
        return nodes

    def add_constants(self) -> None:
        """Add what all products share."""
        self._add(_ONE, np.array(1, np.float32))
        self._add(_LAST_AXIS, np.array([-1], np.int64))
        for kind in (_SYMMETRIC, _ONE_SIDED):
            self._add(kind.zero, np.array(kind.zero_point, np.uint8))
            self._add(kind.step, np.array(1 / kind.steps, np.float32))

    def _is_turned(self, node: NodeProto) -> bool:
        return is_product(node, self._matrices) and node.input[0] in self._roundings

    def _find_sums(self) -> dict[str, NodeProto]:
        """The sums of a product and a bias that nothing else reads, by the product's result."""
        parts = [*with_branches(self._graph)]
        read = Counter(name for part in parts for node in part.node for name in node.input)
        read.update(value.name for part in parts for value in part.output)
        nodes = [node for part in parts for node in part.node]
        products = {
            node.output[0]
            for node in nodes
            if self._is_turned(node) and len(node.input) == 2 and read[node.output[0]] == 1
        }
        return {
            name: node
            for node in nodes
            if node.op_type == "Add" and not self._vectors.keys().isdisjoint(node.input)
            for name in products.intersection(node.input)
        }

    def _round(self, tokens: str) -> list[NodeProto]:
        """Nodes that round ``tokens`` [..., tokens, in] to uint8, with scales [..., tokens, 1].

        A token of zeros has the scale 0, which makes its products zeros whatever its bytes are.
        """
        rounding = self._roundings[tokens]
        kind, one_scale = _kind(rounding), rounding.largest
        uint8, scales = _rounded(tokens)
        nodes, divided = [], tokens
        if rounding.factors is not None:
            finer = kind.steps / one_scale if one_scale else 1
            inverse = self._add(f"{tokens}/inverse", finer / rounding.factors)
            divided = f"{tokens}/divided"
            nodes.append(make_op("Mul", [tokens, inverse], divided))
        if one_scale:
            return [*nodes, make_op("QuantizeLinear", [divided, _ONE, kind.zero], uint8)]
        sizes, largest, line = (f"{tokens}/{part}" for part in ("sizes", "max", "line"))
        if kind is _SYMMETRIC:
            nodes += [
                make_op("Abs", [divided], sizes),
                make_op("ReduceMax", [sizes, _LAST_AXIS], largest),  # keeps the axis
                make_op("Mul", [largest, kind.step], scales),
            ]
        else:
            least = np.array(-(rounding.least or 0) / kind.zero_point, np.float32)
            nodes += [
                make_op("ReduceMax", [divided, _LAST_AXIS], largest),
                make_op("Mul", [largest, kind.step], sizes),
                make_op("Max", [sizes, self._add(f"{tokens}/least", least)], scales),
            ]
        return [
            *nodes,
            make_op("Reshape", [scales, _LAST_AXIS], line),
            make_op("QuantizeLinear", [divided, line, kind.zeros(tokens)], uint8, axis=-2),
        ]

    def _multiply(self, product: NodeProto) -> list[NodeProto]:
        """``product`` and its bias, made of its rounded tokens and its matrix, which is stored."""
        tokens, matrix = product.input[:2]
        rounding, name = self._roundings[tokens], product.output[0]
        kind = _kind(rounding)
        uint8, scales = _rounded(tokens)
        whole, channel_scales = rounding.weights(self._matrices[matrix])
        bias, result = self._bias(product)
        if rounding.largest:
            channel_scales = channel_scales * np.float32(rounding.largest / kind.steps)
        factors = [
            uint8,
            self._add(f"{name}/int8", whole),
            _ONE,
            self._add(f"{name}/channel_scales", channel_scales.reshape(-1)),
            kind.zero,
        ]
        if rounding.largest:
            return [_product(factors + (["", bias] if bias else []), result)]
        by_channel, unbiased = f"{name}/by_channel", f"{name}/unbiased" if bias else result
        scaled = [_product(factors, by_channel), make_op("Mul", [by_channel, scales], unbiased)]
        return [*scaled, make_op("Add", [unbiased, bias], result)] if bias else scaled

    def _bias(self, product: NodeProto) -> tuple[str, str]:
        """The name of the bias, "" without, and of the product's result with it."""
        name = product.output[0]
        if name not in self._sums:
            return "".join(product.input[2:]), name
        added = self._sums[name]
        return next(each for each in added.input if each != name), added.output[0]

    def _add(self, name: str, values: NDArray[Any]) -> str:
        self._graph.initializer.append(numpy_helper.from_array(values, name))
        return name


def _kind(rounding: Rounding) -> _Bytes:
    return _SYMMETRIC if rounding.least is None else _ONE_SIDED


def _count_tokens(tokens: str, kind: _Bytes, made: set[str]) -> list[NodeProto]:
    """Nodes that make the zero points [tokens] of each token, unless they are ``made`` already.

    The first product makes those of both kinds for all, because an exit may stand between it and
    the first that needs them.
    """
    nodes = []
    for each in (kind,) if tokens.endswith(READ) else (_SYMMETRIC, _ONE_SIDED):
        zeros = each.zeros(tokens)
        if zeros not in made:
            count = f"{zeros}/count"
            nodes += [
                make_op("Shape", [tokens], count, start=-2, end=-1),
                make_op("Expand", [each.zero, count], zeros),
            ]
            made.add(zeros)
    return nodes


def _product(inputs: list[str], output: str) -> NodeProto:
    return make_op("MatMulIntegerToFloat", inputs, output, domain="com.microsoft")


def _rounded(tokens: str) -> tuple[str, str]:
    return f"{tokens}/uint8", f"{tokens}/scales"
