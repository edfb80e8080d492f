"""Which operators of a graph with early exits are run at a depth, read from the graph alone."""

from collections import Counter
from collections.abc import Iterable

from onnx import GraphProto, NodeProto, helper

from s2sent.model.export.early_exit import DEPTH_INPUT


def operators_run(graph: GraphProto, depth: int) -> Counter[str]:
    """How often each operator is run at ``depth``, also within the branches that are taken."""
    constants = {
        node.output[0]: helper.get_attribute_value(node.attribute[0])
        for node in graph.node
        if node.op_type == "Constant"
    }
    true: dict[str, bool] = {}
    for node in graph.node:
        if node.op_type == "Greater" and node.input[0] == DEPTH_INPUT:
            true[node.output[0]] = depth > constants[node.input[1]]
        elif node.op_type in ("Not", "And") and node.input[0] in true:
            every = all(true[name] for name in node.input)
            true[node.output[0]] = not every if node.op_type == "Not" else every
    found: Counter[str] = Counter()
    for node in graph.node:
        found[node.op_type] += 1
        if node.op_type == "If":
            taken = _branch(node, "then_branch" if true[node.input[0]] else "else_branch")
            assert all(inner.op_type != "If" for inner in taken.node)
            found.update(inner.op_type for inner in taken.node)
    return found


def softmax_axes(nodes: Iterable[NodeProto]) -> list[int]:
    """The axis of each Softmax."""
    return [
        next((each.i for each in node.attribute if each.name == "axis"), -1)
        for node in nodes
        if node.op_type == "Softmax"
    ]


def _branch(node: NodeProto, name: str) -> GraphProto:
    graph: GraphProto = next(each.g for each in node.attribute if each.name == name)
    return graph
