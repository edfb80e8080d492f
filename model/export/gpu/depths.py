"""One depth of a graph with early exits: without the input ``depth``, branches and unread parts.

An If of ONNX Runtime takes its condition on the CPU: each costs a run on a GPU two copies and a
wait. Which branch is taken follows from the depth alone, or is settled here: long texts are
attended to with their mask (`model.export.cpu.long_attention`).
"""

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from onnx import AttributeProto, GraphProto, NodeProto

from s2sent.model.export.cpu.long_attention import LONG_UNPADDED
from s2sent.model.export.early_exit import DEPTH_INPUT
from s2sent.model.export.graph import GraphError
from s2sent.model.export.nodes import drop_unread, make_op, makers_of, pick, refill

_EVALUATED: Mapping[str, Callable[..., bool]] = {
    "Greater": operator.gt,
    "Not": operator.not_,
    "And": operator.and_,
}


def keep_depth(graph: GraphProto, depth: int | None, outputs: Collection[str]) -> None:
    """Leave what makes ``outputs`` at ``depth``, in place; None for a graph that has no depths.

    Raises `GraphError` where a branch is chosen by what is embedded.
    """
    refill(graph.node, [*_without_ifs(graph.node, _conditions(graph, depth))])
    refill(graph.output, [each for each in graph.output if each.name in outputs])
    refill(graph.input, [each for each in graph.input if each.name != DEPTH_INPUT])
    _drop_identities(graph)
    if _drop_empty_parts(graph):
        _drop_identities(graph)
    drop_unmade(graph)


def drop_unmade(graph: GraphProto) -> None:
    """Remove the nodes that no output depends on, and the initializers that no node reads."""
    needed = makers_of(graph, [each.name for each in graph.output])
    refill(graph.node, pick(graph, needed))
    drop_unread(graph)


def _conditions(graph: GraphProto, depth: int | None) -> dict[str, bool]:
    """The values that follow from the depth, by name."""
    values: dict[str, Any] = {} if depth is None else {DEPTH_INPUT: depth}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].type == AttributeProto.INT:
            values[node.output[0]] = node.attribute[0].i
        elif node.op_type in _EVALUATED and all(name in values for name in node.input):
            given = [values[name] for name in node.input]
            values[node.output[0]] = _EVALUATED[node.op_type](*given)
    return values


def _without_ifs(nodes: Collection[NodeProto], values: Mapping[str, bool]) -> Iterator[NodeProto]:
    for node in nodes:
        if node.op_type != "If":
            yield node
            continue
        condition = node.input[0]
        if condition not in values and not condition.endswith(LONG_UNPADDED):
            raise GraphError(f"it has a branch that {condition} chooses, which is no depth")
        name = "then_branch" if values.get(condition) else "else_branch"
        branch = next(each.g for each in node.attribute if each.name == name)
        inner = [*_without_ifs(branch.node, values)]
        # A branch may have a value of the same name as one outside.
        made = {name: f"{node.output[0]}/{name}" for each in inner for name in each.output if name}
        for each in inner:
            for names in (each.input, each.output):
                names[:] = [made.get(name, name) for name in names]
        yield from inner
        for value, result in zip(branch.output, node.output, strict=True):
            given = made.get(value.name, value.name)
            yield make_op("Identity", [given], result)


def _drop_identities(graph: GraphProto) -> None:
    """Let what reads a copy read what was copied, in place."""
    copies = {each.output[0]: each.input[0] for each in graph.node if each.op_type == "Identity"}
    made = {name for node in graph.node for name in node.output} - {*copies}

    def original(name: str) -> str:
        while name in copies:
            name = copies[name]
        return name

    named: dict[str, str] = {}  # by the name of a value, the output that it is
    for output in graph.output:
        value = original(output.name)
        if value != output.name and value in made and value not in named:
            named[value] = output.name
    outputs = {each.name for each in graph.output} - {*named.values()}
    nodes = []
    for node in graph.node:
        if node.op_type == "Identity" and node.output[0] not in outputs:
            continue
        for names in (node.input, node.output):
            names[:] = [named.get(original(name), original(name)) for name in names]
        nodes.append(node)
    refill(graph.node, nodes)


def _drop_empty_parts(graph: GraphProto) -> int:
    """Let no Concat read a constant without elements, in place; returns how many did."""
    empty = {
        node.output[0]
        for node in graph.node
        if node.op_type == "Constant" and 0 in node.attribute[0].t.dims
    }
    changed = 0
    for node in graph.node:
        if node.op_type == "Concat" and not empty.isdisjoint(node.input):
            node.input[:] = [name for name in node.input if name not in empty]
            changed += 1
            if len(node.input) == 1:
                node.op_type = "Identity"
                del node.attribute[:]
    return changed
