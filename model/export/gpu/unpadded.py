"""Attention without padding, of a graph for a GPU whose blocks hold packed tokens.

    query, key, value [tokens, 3 width] -> unpack -> split -> MultiHeadAttention -> pack
                                        -> split -> PackedMultiHeadAttention

ONNX Runtime's com.microsoft.PackedMultiHeadAttention has a kernel for CUDA only. Of the tokens it
is told where each stands in the padded batch, and where each text ends. MultiHeadAttention with a
mask of keys has none of the fast kernels there. What is before the blocks, and the pooling, work on
padded rows in both forms: lookups, and a product of a few rows a text.
"""

from collections import Counter

from onnx import GraphProto, NodeProto, TensorProto, helper

from s2sent.model.artifact.manifest import TOKEN_PLACES
from s2sent.model.export.gpu.depths import drop_unmade
from s2sent.model.export.nodes import refill
from s2sent.model.runtime.encoder import TEXT_ENDS, TOKEN_OFFSETS

OPERATOR = "PackedMultiHeadAttention"
_ATTRIBUTES = frozenset(("num_heads", "scale", "mask_filter_value"))  # the last one has no use here
_PATH = ("Gather", "Split")  # from the packed product to query, key and value
_BACK = ("Reshape", "Gather")  # from the padded result to packed tokens


def unpad(graph: GraphProto) -> bool:
    """Replace every attention in place; returns False for a graph in which one needs more.

    That is one with a bias, one that looks back only, or one whose query, key and value are not
    parts of one product.
    """
    if [each.name for each in graph.input if each.name.startswith(TOKEN_PLACES)] != [TOKEN_PLACES]:
        return False  # tokens behind a prefix stand elsewhere
    makers = {name: node for node in graph.node for name in node.output}
    readers = Counter(name for node in graph.node for name in node.input)
    reader = {name: node for node in graph.node for name in node.input}
    made: dict[str, list[NodeProto]] = {}  # by the result that they give
    attentions = [node for node in graph.node if node.op_type == "MultiHeadAttention"]
    for node in attentions:
        before = _chain(node.input[0], _PATH, makers)
        after = _followers(node.output[0], reader, readers)
        if before is None or after is None or [*before[0].output] != [*node.input[:3]]:
            return False
        if any(node.input[3:4]) or any(node.input[5:]):
            return False
        if not _ATTRIBUTES.issuperset(each.name for each in node.attribute):
            return False
        made[after.output[0]] = _attend(node, before[1].input[0], after.output[0])
    if not made:
        return False
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes += made.get(node.output[0], [node])
    refill(graph.node, nodes)
    drop_unmade(graph)
    graph.input.extend(
        (
            helper.make_tensor_value_info(TOKEN_OFFSETS, TensorProto.INT32, ["batch", "length"]),
            helper.make_tensor_value_info(TEXT_ENDS, TensorProto.INT32, ["batch + 1"]),
        )
    )
    return True


def _chain(
    name: str, operators: tuple[str, ...], makers: dict[str, NodeProto]
) -> list[NodeProto] | None:
    """The nodes that make a value, the last first, where they are these operators."""
    found = []
    for operator in reversed(operators):
        node = makers.get(name)
        if node is None or node.op_type != operator:
            return None
        found.append(node)
        name = node.input[0]
    return found


def _followers(name: str, reader: dict[str, NodeProto], readers: Counter[str]) -> NodeProto | None:
    """The last of the only nodes that read a padded result, where they pack it."""
    node = None
    for operator in _BACK:
        node = reader.get(name)
        if node is None or readers[name] != 1 or node.op_type != operator:
            return None
        name = node.output[0]
    return node


def _attend(node: NodeProto, joint: str, result: str) -> list[NodeProto]:
    """Attention of packed tokens, whose query, key and value stand side by side in ``joint``."""
    parts = [f"{result}/{part}" for part in ("query", "key", "value")]
    attention = helper.make_node(
        OPERATOR,
        [*parts, "", TOKEN_OFFSETS, TEXT_ENDS],
        [result],
        node.name,
        domain="com.microsoft",
    )
    attention.attribute.extend(each for each in node.attribute if each.name != "mask_filter_value")
    split = helper.make_node("Split", [joint], parts, f"{result}/split", axis=-1, num_outputs=3)
    return [split, attention]
