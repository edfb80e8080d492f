"""Attention over padded texts as ONNX's own operator, whose CPU kernel is the faster one.

    mask [batch, length] -> hidden [batch, 1, length, length], 0 or HIDDEN, added to the scores
    MultiHeadAttention(query, key, value, mask) -> Attention(query, key, value, hidden)
    MultiHeadAttention(query, key, value, bias) -> Attention(query, key, value, bias)

Both operators give the same numbers. Where nothing is padded ONNX Runtime 1.31 takes half the time
for ONNX's, a third where texts of 16 tokens are padded, and three quarters with a bias.

ONNX operators, Attention, version 23: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from collections.abc import Collection

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, helper

from s2sent.model.export.cpu.long_attention import LONG_UNPADDED, skip_mask_for_long_texts
from s2sent.model.export.cpu.packing import MASK
from s2sent.model.export.nodes import (
    choose,
    constant,
    drop_unread,
    make_op,
    map_nodes,
    refill,
    with_branches,
)
from s2sent.model.runtime.encoder import LONG_TEXT

OPSET = 23  # the first with Attention
_IR_VERSION = 11  # the format's version that came with it

# What hides a token. Its share of a text is e ** HIDDEN of what it would be, which is lost in the
# rounding of float32. With minus infinity it would be the smallest denormal number, as
# MultiHeadAttention's is, and a processor multiplies those a hundred times slower.
HIDDEN = -50.0

HIDDEN_KEYS = "attention/hidden"
_KNOWN = frozenset(("num_heads", "scale", "mask_filter_value"))


def finish_attention(
    model: ModelProto, fused: dict[str, int], *, packed: bool, longest: int
) -> None:
    """Give attention its last form, for texts of up to ``longest`` tokens, in place.

    ``fused`` counts the operators, here by their new names.
    """
    if longest > LONG_TEXT:
        skip_mask_for_long_texts(model.graph)
    if packed and attend_by_standard_operator(model):
        fused["Attention"] = fused.pop("MultiHeadAttention")


def attend_by_standard_operator(model: ModelProto) -> int:
    """Turn every attention by the mask or by a bias, not both, in place; returns how many.

    ``model`` may have branches; it reads the mask as one of its inputs.
    """
    graph = model.graph
    masks = {MASK} | {
        node.output[0] for node in graph.node if node.op_type == "Cast" and node.input[0] == MASK
    }
    turned = map_nodes(graph, lambda node: _standard(node, masks))
    if any(HIDDEN_KEYS in node.input for part in with_branches(graph) for node in part.node):
        made = [output for node in graph.node for output in node.output]
        first = made.index(LONG_UNPADDED) + 1 if LONG_UNPADDED in made else 0
        hide = _hide(graph, unless=LONG_UNPADDED if first else None)
        refill(graph.node, [*graph.node[:first], *hide, *graph.node[first:]])
        drop_unread(graph)
    if turned:
        for entry in model.opset_import:
            if not entry.domain:
                entry.version = max(entry.version, OPSET)
        model.ir_version = max(model.ir_version, _IR_VERSION)
    return turned


def _standard(attention: NodeProto, masks: Collection[str]) -> NodeProto | None:
    given = {each.name: helper.get_attribute_value(each) for each in attention.attribute}
    if attention.op_type != "MultiHeadAttention" or not given.keys() <= _KNOWN:
        return None
    more = [*attention.input[3:], "", "", ""]
    mask, bias = more[1:3]
    if more[0] or any(more[3:]) or mask not in ("", *masks) or bool(mask) == bool(bias):
        return None
    heads = given["num_heads"]
    scale = {"scale": given["scale"]} if given.get("scale") else {}  # 0: 1 / sqrt(width of a head)
    inputs, result = [*attention.input[:3], bias or HIDDEN_KEYS], attention.output[0]
    return make_op("Attention", inputs, result, q_num_heads=heads, kv_num_heads=heads, **scale)


def _hide(graph: GraphProto, unless: str | None) -> list[NodeProto]:
    """Nodes that make what is added to the scores [batch, 1, length, length] of the mask.

    Where the value ``unless`` is true nothing reads it, and it has one row of keys.
    """
    table = constant(graph, "attention/table", [HIDDEN, 0], np.float32)
    rows = constant(graph, "attention/row", [0, 1, 1, -1])  # 0: as it is
    one = constant(graph, "attention/one", [1])
    row, shape = "attention/keys", "attention/shape"
    expanded = make_op("Expand", [row, shape], HIDDEN_KEYS)
    if unless is not None:
        alone = make_op("Identity", [row], f"{HIDDEN_KEYS}/row")
        expanded = make_op("Expand", [row, shape], f"{HIDDEN_KEYS}/rows")
        expanded = choose(unless, HIDDEN_KEYS, alone, expanded)
    return [
        make_op("Gather", [table, MASK], "attention/shown"),
        make_op("Reshape", ["attention/shown", rows], row),
        make_op("Shape", [MASK], "attention/length", start=1),
        make_op("Concat", [one, one, "attention/length", one], shape, axis=0),
        expanded,
    ]
