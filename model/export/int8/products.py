"""Matrix products in int8: a packed encoder's matrices and the tokens they multiply are rounded.

    x [..., tokens, in] -> x / channel's factor -> a token's scale = its max / 127
        -> round(x / scale) + 128, as uint8
        -> times the int8 matrix, summed in int32 -> times the channels' scales and the token's

Every token has its own scale, or all tokens of all texts have one, which `calibration` measures, so
an embedding does not depend on its batch. ONNX Runtime's dynamic quantisation has one scale for the
whole batch, set by the largest value of any text. Integer sums are exact in any order, so batch,
threads and shapes cannot change them either.

An activation such as Gelu is never far below zero. It has all 255 steps above its least value:

    x -> x / factor - least / factor -> round(x / its max * 255), as uint8
        -> times the int8 matrix -> minus the product of what was added, a constant

The operations that stay in float32 (embeddings, attention, normalisation, pooling) differ in the
last bit between processors, which can change a rounding here. Embeddings from two kinds of machine
therefore agree only as well as either agrees with float32; docs/artifact.md has figures.

NaN is lost in the maximum and in int8, but the residual sums around the products propagate it.

Tokens are unsigned, because x86 multiplies unsigned by signed bytes (VNNI); for two signed factors
ONNX Runtime has a loop that takes ten times as long.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, helper, numpy_helper

from model.export.graph import drop_unread, replace_nodes, with_branches
from model.export.int8.calibration import Rounding, Roundings, is_product, matrices_of
from model.export.int8.storage import quantize_channels
from model.export.packed.read_early import READ

_ONE, _LAST_AXIS = "int8/one", "int8/last_axis"


@dataclass(frozen=True)
class _Bytes:
    """How numbers are written as uint8: what stands for 0, and the steps up to the largest."""

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


_SYMMETRIC = _Bytes("symmetric", 128, 127)
_ONE_SIDED = _Bytes("one_sided", 0, 255)


def multiply_as_int8(graph: GraphProto, roundings: Roundings) -> int:
    """Turn products of packed tokens and matrices into int8 products, in place; returns how many.

    ``roundings`` comes from `model.export.int8.calibration.measure_tokens`; other tokens, which are
    padded still, stay in float32, as do the pooling's products, Gemm with attributes (it may
    transpose), and matrices of fewer than `MIN_ROUNDED_ELEMENTS`. Products within branches are
    turned too; what they read is stored in ``graph``, which has a product before its first branch.
    """
    products = _Products(graph, roundings)
    for part in with_branches(graph):
        replace_nodes(part, products.turned(part))
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
                    nodes += self._round(tokens, made)
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

    def _round(self, tokens: str, made: set[str]) -> list[NodeProto]:
        """Nodes that round ``tokens`` [..., tokens, in] to uint8, with scales [..., tokens, 1].

        A token of zeros has the scale 0, which makes its products zeros whatever its bytes are.
        ``made`` are the values that there are already; the zero points are put among them.
        """
        rounding = self._roundings[tokens]
        kind, one_scale = _kind(rounding), rounding.largest
        uint8, scales = _rounded(tokens)
        divided, largest, line = (f"{tokens}/{part}" for part in ("divided", "max", "line"))
        finer = kind.steps / one_scale if one_scale else 1
        nodes = [
            _node(
                "Mul", [tokens, self._add(f"{tokens}/inverse", finer / rounding.factors)], divided
            )
        ]
        if (shift := rounding.shift) is not None:
            above = f"{tokens}/above"
            nodes.append(
                _node("Add", [divided, self._add(f"{tokens}/shift", finer * shift)], above)
            )
            divided = above
        if one_scale:
            return [*nodes, _node("QuantizeLinear", [divided, _ONE, kind.zero], uint8)]
        zeros = kind.zeros(tokens)
        if zeros not in made:
            nodes += _count_tokens(tokens, kind)
            made.add(zeros)
        sizes = divided
        if kind is _SYMMETRIC:
            sizes = f"{tokens}/abs"
            nodes.append(_node("Abs", [divided], sizes))
        return [
            *nodes,
            _node("ReduceMax", [sizes, _LAST_AXIS], largest),  # keeps the axis
            _node("Mul", [largest, kind.step], scales),
            _node("Reshape", [scales, _LAST_AXIS], line),
            helper.make_node("QuantizeLinear", [divided, line, zeros], [uint8], uint8, axis=-2),
        ]

    def _multiply(self, product: NodeProto) -> list[NodeProto]:
        """``product`` and its bias, made of its rounded tokens and its matrix, which is stored."""
        tokens, matrix = product.input[:2]
        rounding, name = self._roundings[tokens], product.output[0]
        kind = _kind(rounding)
        uint8, scales = _rounded(tokens)
        whole, channel_scales = quantize_channels(
            self._matrices[matrix] * rounding.factors[:, None], axis=1
        )
        bias, result = self._bias(product)
        if (shift := rounding.shift) is not None:
            offset = shift @ (whole * channel_scales)
            bias = self._add(f"{name}/bias", (self._vectors[bias] if bias else 0) - offset)
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
        scaled = [_product(factors, by_channel), _node("Mul", [by_channel, scales], unbiased)]
        return [*scaled, _node("Add", [unbiased, bias], result)] if bias else scaled

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


def _count_tokens(tokens: str, kind: _Bytes) -> list[NodeProto]:
    """Nodes that make the zero point of each token, [tokens]."""
    zeros = kind.zeros(tokens)
    count = f"{zeros}/count"
    return [
        helper.make_node("Shape", [tokens], [count], count, start=-2, end=-1),
        _node("Expand", [kind.zero, count], zeros),
    ]


def _product(inputs: list[str], output: str) -> NodeProto:
    return helper.make_node(
        "MatMulIntegerToFloat", inputs, [output], output, domain="com.microsoft"
    )


def _rounded(tokens: str) -> tuple[str, str]:
    return f"{tokens}/uint8", f"{tokens}/scales"


def _node(operator: str, inputs: list[str], output: str) -> NodeProto:
    return helper.make_node(operator, inputs, [output], output)
