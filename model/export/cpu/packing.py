"""Packing: the encoder's blocks process a batch's tokens without the padding between the texts.

    embeddings [batch, length, width] -> pack [tokens, width] -> block, block, ... -> unpack
    within a block: query, key and value side by side [tokens, 3 width] -> unpack -> split
                    -> attention -> pack

All operators of a block but attention treat each token separately, so their work on padding is
wasted; in a batch of mixed lengths that is more than half of the work. Attention needs the tokens
of a text together: it gets padded rows, in which arbitrary tokens fill the places of padding and
the mask hides them.

Packing also makes query, key and value one matrix product for the whole batch. ONNX Runtime's
Attention operator multiplies per text and head, with few rows per product.

This is for CPUs. On a GPU the fast attention kernels take lengths (`model.export.graph.fuse`), and
the CPU would have to wait for the GPU's token count. docs/artifact.md has the gain.
"""

from collections import Counter
from collections.abc import Sequence

from onnx import GraphProto, NodeProto, helper

from s2sent.model.export.nodes import constant, drop_unread, make_op, refill, with_branches

MASK = "attention_mask"  # int64 [batch, length] of 0 and 1, one of the encoder's inputs

# What gives for each token a result that depends on that token alone.
_PRODUCTS = frozenset(("MatMul", "Gemm"))
_TOKEN_WISE = _PRODUCTS | frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Erf", "Tanh", "Sigmoid", "Relu", "Identity")
    + ("LayerNormalization", "Gelu", "BiasGelu", "FastGelu")
)
# Attention(states, weight and bias of query, key and value side by side, mask) without a past, a
# bias by position or anything else that would have to be unpacked as well.
_ATTENTION_INPUTS = 4
_ATTENTION_ATTRIBUTES = frozenset(("num_heads", "mask_filter_value", "scale"))

_TOKENS = "packing/tokens"  # [tokens]: the place of each token in the padded batch, flattened
_PLACES = "packing/places"  # [batch, length]: the packed token of each place; of padding, any
_FLAT = "packing/flat"  # the shape [-1, width]


def pack(graph: GraphProto) -> bool:
    """Rewrite a fused encoder's blocks to work on packed tokens, in place; returns whether it did.

    Inputs and outputs keep their shapes and, up to rounding, their values, except for states at
    padding. Every row of the mask needs at least one token. A graph stays unchanged where it has no
    fused attention, or where another operator between the blocks combines several tokens.
    """
    attentions = [node for node in graph.node if node.op_type == "Attention"]
    if not attentions:
        return False
    entry = attentions[0].input[0]  # what the first block reads
    packed = _values_of_blocks(graph, entry)
    if not packed:
        return False
    shapes = {tensor.name: tensor.dims for tensor in graph.initializer}
    width = shapes[attentions[0].input[1]][0]
    outputs = {value.name for value in graph.output}
    nodes = _find_tokens(graph, width)
    for node in graph.node:
        made = [*node.output]
        if node.op_type == "Attention":
            nodes += _attend(node)
        else:
            nodes.append(node if packed.isdisjoint(node.input) else _on_packed(node, packed))
        for name in made:
            if name == entry:
                nodes += _pack(name, _packed(name))
            elif name in packed & outputs:
                nodes.append(_unpack(_packed(name), name))
    refill(graph.node, nodes)
    drop_unread(graph)
    return True


def pack_fused(graph: GraphProto, fused: dict[str, int]) -> bool:
    """`pack`, and let products add biases; ``fused`` counts the operators by their new names."""
    if not pack(graph):
        return False
    fused["MultiHeadAttention"] = fused.pop("Attention")
    if add_biases_in_products(graph):
        fused["Gelu"] = fused.pop("BiasGelu")
    return True


def add_biases_in_products(graph: GraphProto) -> int:
    """Let products of packed tokens add the bias that BiasGelu adds, in place; returns how often.

    A product adds it as it writes its results. ONNX Runtime 1.31's CPU kernel of BiasGelu takes 1.6
    times as long as that of Gelu.
    """
    tensors = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    turned = 0
    for part in with_branches(graph):
        readers = Counter(name for node in part.node for name in node.input)
        products = {node.output[0]: node for node in part.node if node.op_type == "MatMul"}
        for node in part.node:
            product = products.get(node.input[0]) if node.op_type == "BiasGelu" else None
            if product is None or readers[node.input[0]] > 1 or tensors.get(product.input[1]) != 2:
                continue
            product.op_type = "Gemm"  # whose first factor has two axes: packed tokens
            product.input.append(node.input[1])
            node.op_type = "Gelu"
            del node.input[1]
            turned += 1
    return turned


def packed_state(graph: GraphProto, state: str) -> str:
    """The packed form of ``state``, an output of a packed encoder, that the next block reads."""
    return _packed(state) if any(_packed(state) in node.output for node in graph.node) else state


def _values_of_blocks(graph: GraphProto, entry: str) -> set[str]:
    """``entry`` and every value computed from it; empty where one of them cannot be packed."""
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            ranks[node.output[0]] = len(node.attribute[0].t.dims)
    values = {entry}
    for node in graph.node:
        if values.isdisjoint(node.input):
            continue
        if not _can_be_packed(node, values, ranks):
            return set()
        values.update(node.output)
    return values


def _can_be_packed(node: NodeProto, values: set[str], ranks: dict[str, int]) -> bool:
    others = [name for name in node.input if name not in values]
    if node.op_type == "Attention":
        names = {attribute.name for attribute in node.attribute}
        inputs = [name for name in node.input if name]
        return (
            names <= _ATTENTION_ATTRIBUTES
            and len(inputs) == _ATTENTION_INPUTS
            and others == inputs[1:]
        )
    if node.op_type in _PRODUCTS:  # with a matrix, and for Gemm a bias
        return others == [*node.input[1:]] and ranks.get(others[0]) == 2
    axes = [attribute.i for attribute in node.attribute if attribute.name == "axis"]
    # Weights of more axes would bring back the axis that packing takes away.
    weights_fit = all(ranks.get(name, 2) <= 1 for name in others)
    return node.op_type in _TOKEN_WISE and weights_fit and axes in ([], [-1])


def _find_tokens(graph: GraphProto, width: int) -> list[NodeProto]:
    """Nodes that compute the indices for packing and unpacking from the mask."""
    line, zero, one = "packing/line", "packing/zero", "packing/one"
    flat, found, counted = "packing/mask", "packing/found", "packing/counted"
    before, index, shape = "packing/before", "packing/index", "packing/shape"
    for name, value in ((line, [-1]), (zero, 0), (one, 1), (_FLAT, [-1, width])):
        constant(graph, name, value)
    return [
        make_op("Reshape", [MASK, line], flat),
        make_op("NonZero", [flat], found),
        make_op("Reshape", [found, line], _TOKENS),
        make_op("CumSum", [flat, zero], counted),
        make_op("Sub", [counted, one], before),
        make_op("Max", [before, zero], index),  # of padding in front of the first token
        make_op("Shape", [MASK], shape),
        make_op("Reshape", [index, shape], _PLACES),
    ]


def _attend(node: NodeProto) -> list[NodeProto]:
    """An Attention operator as one product of packed tokens and attention over padded rows."""
    states, weight, bias, mask = node.input[:_ATTENTION_INPUTS]
    result = node.output[0]
    joint, padded = f"{result}/joint", f"{result}/padded"
    parts = [f"{result}/{part}" for part in ("query", "key", "value")]
    attention = make_op("MultiHeadAttention", [*parts, "", mask], padded, domain="com.microsoft")
    attention.attribute.extend(node.attribute)
    return [
        make_op("Gemm", [_packed(states), weight, bias], _packed(joint)),
        _unpack(_packed(joint), joint),
        helper.make_node("Split", [joint], parts, f"{joint}/split", axis=-1, num_outputs=3),
        attention,
        *_pack(padded, _packed(result)),
    ]


def _on_packed(node: NodeProto, packed: set[str]) -> NodeProto:
    """The node, on packed values."""
    node.input[:] = [_packed(name) if name in packed else name for name in node.input]
    node.output[:] = [_packed(name) for name in node.output]
    return node


def _pack(padded: str, tokens: str) -> Sequence[NodeProto]:
    """[batch, length, width] to [tokens, width]."""
    line = f"{padded}/flat"
    return (
        make_op("Reshape", [padded, _FLAT], line),
        make_op("Gather", [line, _TOKENS], tokens, axis=0),
    )


def _unpack(tokens: str, padded: str) -> NodeProto:
    """[tokens, width] to [batch, length, width]."""
    return make_op("Gather", [tokens, _PLACES], padded, axis=0)


def _packed(name: str) -> str:
    return f"{name}/packed"
