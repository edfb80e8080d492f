"""Attention over padded texts as ONNX's own operator, whose CPU kernel is the faster one.

    mask [batch, length] -> hidden [batch, 1, length, length], 0 or HIDDEN, added to the scores
    MultiHeadAttention(query, key, value, mask) -> Attention(query, key, value, hidden)

Both operators give the same numbers. Where nothing is padded ONNX Runtime 1.31 takes half the time
for ONNX's, and a third where texts of 16 tokens are padded.

ONNX operators, Attention, version 23: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from collections.abc import Collection

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from s2sent.model.export.cpu.long_attention import LONG_UNPADDED
from s2sent.model.export.cpu.packing import MASK
from s2sent.model.export.graph import choose, drop_unread, map_nodes, replace_nodes

OPSET = 23  # the first with Attention
_IR_VERSION = 11  # the format's version that came with it

# What hides a token. Its share of a text is e ** HIDDEN of what it would be, which is lost in the
# rounding of float32. With minus infinity it would be the smallest denormal number, as
# MultiHeadAttention's is, and a processor multiplies those a hundred times slower.
HIDDEN = -50.0

HIDDEN_KEYS = "attention/hidden"
_MASK, _BIAS = 4, 5  # places among the inputs of MultiHeadAttention
_KNOWN = frozenset(("num_heads", "scale", "mask_filter_value"))


def attend_by_standard_operator(model: ModelProto) -> int:
    """Turn every attention by the mask without a bias, in place; returns how many.

    ``model`` may have branches; it reads the mask as one of its inputs.
    """
    graph = model.graph
    masks = {MASK} | {
        node.output[0] for node in graph.node if node.op_type == "Cast" and node.input[0] == MASK
    }
    turned = map_nodes(
        graph, lambda node: _standard(node) if _is_masked_attention(node, masks) else None
    )
    if turned:
        made = [output for node in graph.node for output in node.output]
        first = made.index(LONG_UNPADDED) + 1 if LONG_UNPADDED in made else 0
        hide = _hide(graph, unless=LONG_UNPADDED if first else None)
        replace_nodes(graph, [*graph.node[:first], *hide, *graph.node[first:]])
        drop_unread(graph)
        for entry in model.opset_import:
            if not entry.domain:
                entry.version = max(entry.version, OPSET)
        model.ir_version = max(model.ir_version, _IR_VERSION)
    return turned


def _is_masked_attention(node: NodeProto, masks: Collection[str]) -> bool:
    return (
        node.op_type == "MultiHeadAttention"
        and len(node.input) > _MASK
        and node.input[_MASK] in masks
        and not any(node.input[3:_MASK])
        and not any(node.input[_BIAS:])
        and {attribute.name for attribute in node.attribute} <= _KNOWN
    )


def _standard(attention: NodeProto) -> NodeProto:
    given = {each.name: helper.get_attribute_value(each) for each in attention.attribute}
    heads = given["num_heads"]
    scale = {"scale": given["scale"]} if given.get("scale") else {}  # 0: 1 / sqrt(width of a head)
    return helper.make_node(
        "Attention",
        [*attention.input[:3], HIDDEN_KEYS],
        attention.output[:1],
        attention.name,
        q_num_heads=heads,
        kv_num_heads=heads,
        **scale,
    )


def _hide(graph: GraphProto, unless: str | None) -> list[NodeProto]:
    """Nodes that make what is added to the scores [batch, 1, length, length] of the mask.

    Where the value ``unless`` is true nothing reads it, and it has one row of keys.
    """
    table, rows, one = "attention/table", "attention/row", "attention/one"
    graph.initializer.extend(
        numpy_helper.from_array(values, name)
        for name, values in (
            (table, np.array([HIDDEN, 0], np.float32)),
            (rows, np.array([0, 1, 1, -1], np.int64)),  # 0: as it is
            (one, np.array([1], np.int64)),
        )
    )
    shown, row = "attention/shown", "attention/keys"
    length, shape = "attention/length", "attention/shape"
    return [
        helper.make_node("Gather", [table, MASK], [shown], shown),
        helper.make_node("Reshape", [shown, rows], [row], row),
        helper.make_node("Shape", [MASK], [length], length, start=1),
        helper.make_node("Concat", [one, one, length, one], [shape], shape, axis=0),
        _expand(row, shape, HIDDEN_KEYS) if unless is None else _either(unless, row, shape),
    ]


def _expand(row: str, shape: str, result: str) -> NodeProto:
    return helper.make_node("Expand", [row, shape], [result], result)


def _either(condition: str, row: str, shape: str) -> NodeProto:
    """The row itself where the condition is true, else expanded."""
    as_it_is, expanded = (f"{HIDDEN_KEYS}/{name}" for name in ("row", "rows"))
    alone = helper.make_node("Identity", [row], [as_it_is], as_it_is)
    return choose(condition, HIDDEN_KEYS, alone, _expand(row, shape, expanded))
