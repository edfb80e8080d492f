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

from model.export.graph import replace_nodes, with_branches
from model.export.packing import MASK
from model.runtime.encoder import LONG_TEXT

LONG_UNPADDED = "long/unpadded"  # true for a long batch without padding
_BIAS = 5  # the place of an attention's bias among its inputs, the last one here


def spare_scores(graph: GraphProto) -> int:
    """Let every attention with a mask and no bias take this form, in place; returns how many.

    ``graph`` may have branches; it reads the mask as one of its inputs.
    """
    count = 0
    for part in list(with_branches(graph)):
        nodes = []
        for node in part.node:
            if node.op_type == "MultiHeadAttention" and not any(node.input[_BIAS:]):
                nodes.append(_either(node))
                count += 1
            else:
                nodes.append(node)
        replace_nodes(part, nodes)
    if count:
        replace_nodes(graph, [*_condition(graph), *graph.node])
    return count


def _either(attention: NodeProto) -> NodeProto:
    """An If of the attention without its mask, and as it is."""
    result = attention.output[0]
    branches = {}
    for branch, inputs in (("then", attention.input[:3]), ("else", attention.input)):
        name = f"{result}/{branch}"
        node = helper.make_node("MultiHeadAttention", inputs, [name], name, domain=attention.domain)
        node.attribute.extend(attention.attribute)
        kind = helper.make_empty_tensor_value_info(name)
        branches[f"{branch}_branch"] = helper.make_graph([node], branch, [], [kind])
    return helper.make_node("If", [LONG_UNPADDED], [result], attention.name, **branches)


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
