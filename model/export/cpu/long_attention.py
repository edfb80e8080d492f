"""Attention of long texts in little memory: without a score for each pair of tokens at one time.

    If longer than LONG_TEXT and nothing padded -> attention without a mask
    else                                        -> attention with the mask, as it was

ONNX Runtime's CPU kernel of MultiHeadAttention goes through a text in blocks (FlashAttention, arXiv
2205.14135) where there is neither mask nor bias; with a mask it makes all scores, [texts, heads,
length, length]. `model.runtime.encoder.OnnxEncoder` runs each longer text alone, so that a text
always takes the same branch, whatever stands beside it.
"""

from onnx import GraphProto, NodeProto

from s2sent.model.export.cpu.packing import MASK
from s2sent.model.export.nodes import choose, constant, make_op, map_nodes, refill
from s2sent.model.runtime.encoder import LONG_TEXT

LONG_UNPADDED = "long/unpadded"  # true for a long batch without padding
_BIAS = 5  # the place of an attention's bias among its inputs, the last one here


def skip_mask_for_long_texts(graph: GraphProto) -> int:
    """Let every attention with a mask and no bias take this form, in place; returns how many.

    ``graph`` may have branches; it reads the mask as one of its inputs.
    """
    count = map_nodes(graph, _either)
    if count:
        refill(graph.node, [*_condition(graph), *graph.node])
    return count


def _either(node: NodeProto) -> NodeProto | None:
    """An If of an attention without its mask, and as it is; None for any other node."""
    if node.op_type != "MultiHeadAttention" or any(node.input[_BIAS:]):
        return None
    result = node.output[0]
    branches = []
    for branch, inputs in (("then", node.input[:3]), ("else", node.input)):
        name = f"{result}/{branch}"
        form = make_op("MultiHeadAttention", inputs, name, domain=node.domain)
        form.attribute.extend(node.attribute)
        branches.append(form)
    return choose(LONG_UNPADDED, result, *branches)


def _condition(graph: GraphProto) -> list[NodeProto]:
    """Nodes that make the condition of the mask."""
    limit = constant(graph, "long/limit", [LONG_TEXT])
    some = constant(graph, "long/some", [0])
    scalar = constant(graph, "long/shape", [])
    return [
        make_op("Shape", [MASK], "long/length", start=1, end=2),
        make_op("ReduceMin", [MASK], "long/least", keepdims=0),
        make_op("Greater", ["long/length", limit], "long/enough"),
        make_op("Greater", ["long/least", some], "long/whole"),
        make_op("And", ["long/enough", "long/whole"], "long/both"),
        make_op("Reshape", ["long/both", scalar], LONG_UNPADDED),
    ]
