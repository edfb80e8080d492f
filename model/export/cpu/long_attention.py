"""Attention of long texts in little memory: without a score for each pair of tokens at one time.

    If longer than LONG_TEXT and nothing padded -> attention without a mask
    else                                        -> attention with the mask, as it was

ONNX Runtime's CPU kernel of MultiHeadAttention goes through a text in blocks (FlashAttention, arXiv
2205.14135) where there is neither mask nor bias; with a mask it makes all scores, [texts, heads,
length, length]. `model.runtime.encoder.OnnxEncoder` runs each longer text alone, so that a text
always takes the same branch, whatever stands beside it.
"""

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from s2sent.model.export.cpu.packing import MASK
from s2sent.model.export.graph import choose, map_nodes, replace_nodes
from s2sent.model.runtime.encoder import LONG_TEXT

LONG_UNPADDED = "long/unpadded"  # true for a long batch without padding
_BIAS = 5  # the place of an attention's bias among its inputs, the last one here


def skip_mask_for_long_texts(graph: GraphProto) -> int:
    """Let every attention with a mask and no bias take this form, in place; returns how many.

    ``graph`` may have branches; it reads the mask as one of its inputs.
    """
    count = map_nodes(graph, _either)
    if count:
        replace_nodes(graph, [*_condition(graph), *graph.node])
    return count


def _either(node: NodeProto) -> NodeProto | None:
    """An If of an attention without its mask, and as it is; None for any other node."""
    if node.op_type != "MultiHeadAttention" or any(node.input[_BIAS:]):
        return None
    result = node.output[0]
    branches = []
    for branch, inputs in (("then", node.input[:3]), ("else", node.input)):
        name = f"{result}/{branch}"
        form = helper.make_node("MultiHeadAttention", inputs, [name], name, domain=node.domain)
        form.attribute.extend(node.attribute)
        branches.append(form)
    return choose(LONG_UNPADDED, result, *branches)


def _condition(graph: GraphProto) -> list[NodeProto]:
    """Nodes that make the condition of the mask."""
    length, least, long = "long/length", "long/least", "long/enough"
    limit, some = "long/limit", "long/some"
    shape = helper.make_node("Shape", [MASK], [length], length, start=1, end=2)
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in ((limit, [LONG_TEXT]), (some, [0]), ("long/shape", []))
    )
    return [
        shape,
        helper.make_node("ReduceMin", [MASK], [least], least, keepdims=0),
        helper.make_node("Greater", [length, limit], [long], long),
        helper.make_node("Greater", [least, some], ["long/whole"], "long/whole"),
        helper.make_node("And", [long, "long/whole"], ["long/both"], "long/both"),
        helper.make_node("Reshape", ["long/both", "long/shape"], [LONG_UNPADDED], LONG_UNPADDED),
    ]
