"""What edits of ONNX graphs share: making nodes, and finding those that others depend on."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, helper, numpy_helper


def refill(field: Any, values: Iterable[Any]) -> None:
    """Put ``values`` in place of all that a field holds, some of which may be its own.

    The field is one with several messages, such as a graph's nodes.
    """
    kept = [*values]
    del field[:]
    field.extend(kept)


def make_op(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    """A node with one output, by which it is named."""
    return helper.make_node(operator, inputs, [output], output, **attributes)


def constant(graph: GraphProto, name: str, values: Any, kind: type = np.int64) -> str:
    """Add a constant to the graph's initializers; returns its name."""
    graph.initializer.append(numpy_helper.from_array(np.array(values, kind), name))
    return name


def with_branches(graph: GraphProto) -> Iterator[GraphProto]:
    """The branches of the graph's operators, innermost first, and the graph itself at the end."""
    for branch in (branch for node in graph.node for branch in _branches(node)):
        yield from with_branches(branch)
    yield graph


def map_nodes(graph: GraphProto, made: Callable[[NodeProto], NodeProto | None]) -> int:
    """Put what is ``made`` of a node in its place, unless None, in the graph and its branches.

    Returns how many nodes it was.
    """
    count = 0
    for part in list(with_branches(graph)):
        others = [made(node) for node in part.node]
        count += len(others) - others.count(None)
        pairs = zip(part.node, others, strict=True)
        refill(part.node, [node if other is None else other for node, other in pairs])
    return count


def choose(condition: str, result: str, then: NodeProto, otherwise: NodeProto) -> NodeProto:
    """An If, which gives as ``result`` what one of two nodes gives."""
    branches = {}
    for name, node in (("then_branch", then), ("else_branch", otherwise)):
        given = helper.make_empty_tensor_value_info(node.output[0])
        branches[name] = helper.make_graph([node], name, [], [given])
    return helper.make_node("If", [condition], [result], result, **branches)


def _branches(node: NodeProto) -> list[GraphProto]:
    return [each.g for each in node.attribute if each.type == AttributeProto.GRAPH]


def makers_of(graph: GraphProto, values: Sequence[str], given: Sequence[str] = ()) -> set[int]:
    """The positions of the nodes that ``values`` are made by, one after another, of ``given`` ones.

    A node needs what its branches read too. An empty name stands for an optional input or output
    that is left out.
    """
    maker = {name: position for position, node in enumerate(graph.node) for name in node.output}
    for name in ("", *given):
        maker.pop(name, None)
    needed: set[int] = set()
    names = [*values]
    while names:
        position = maker.get(names.pop())  # None for an input or a weight
        if position is not None and position not in needed:
            needed.add(position)
            names += read_by(graph.node[position])
    return needed


def read_by(node: NodeProto) -> list[str]:
    """The values that a node reads, and its branches of what is made outside them."""
    names = [*node.input]
    for branch in _branches(node):
        own = {name for inner in branch.node for name in inner.output}
        names += (name for inner in branch.node for name in read_by(inner) if name not in own)
    return names


def sort(graph: GraphProto) -> None:
    """Put each node behind those that it reads, in place; a sorted graph stays as it is."""
    maker = {name: position for position, node in enumerate(graph.node) for name in node.output}
    before = {
        position: {maker[name] for name in read_by(node) if name and name in maker}
        for position, node in enumerate(graph.node)
    }
    if any(position <= max(read, default=-1) for position, read in before.items()):
        order = TopologicalSorter(before).static_order()
        refill(graph.node, [graph.node[position] for position in order])


def constants_of(graph: GraphProto) -> set[str]:
    """The values that depend on no input: weights, and what they are unfolded to."""
    constant = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if constant.issuperset(filter(None, node.input)):
            constant.update(filter(None, node.output))
    return constant


def dependents_of(graph: GraphProto, value: str) -> set[int]:
    """The positions of the nodes that depend on ``value``."""
    known, dependent = {value}, set[int]()
    for position, node in enumerate(graph.node):
        if not known.isdisjoint(node.input):
            dependent.add(position)
            known.update(filter(None, node.output))
    return dependent


def pick(graph: GraphProto, positions: Collection[int]) -> list[NodeProto]:
    """The nodes at ``positions``, in the graph's order."""
    return [graph.node[position] for position in sorted(positions)]


def drop_unread(graph: GraphProto) -> None:
    """Remove the initializers that no node reads."""
    read = {name for part in with_branches(graph) for node in part.node for name in node.input}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name not in read:
            del graph.initializer[index]
