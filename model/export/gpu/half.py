"""A graph in float16, but for its pooling and the angles of rotary positions, in float32.

    angles (float32) -> cast -> blocks (float16) -> cast -> pooling (float32) -> outputs (float32)

Angles grow with a token's position, and float16 keeps whole numbers up to 2,048 only.
"""

import re
from collections.abc import Collection

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnxruntime.transformers.float16 import convert_float_to_float16

from s2sent.model.export.graph import POOLING
from s2sent.model.export.nodes import dependents_of, pick, refill

_OF_POOLING = re.compile(rf"(\w+/)?{POOLING}")  # twins have a tower's name ahead
_HIDES = 1e4  # the largest number: what hides a token is as low as float32 goes


def round_to_half(model: ModelProto) -> ModelProto:
    """The graph, which has no branches, with blocks in float16; changes ``model``."""
    graph = model.graph
    _constants_to_initializers(graph)
    pooling, angles = _pooling(graph), _angles(graph)
    blocks = {*range(len(graph.node))} - pooling - angles
    made = {name for node in pick(graph, blocks) for name in node.output}
    outputs = {each.name for each in graph.output}
    states = _read(pick(graph, pooling)) & made | outputs & made
    turned = {name for node in pick(graph, angles) for name in node.output}
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sorted(names)]
        for names in (turned & _read(pick(graph, blocks)), states)
    ]
    own, others = _split_weights(graph, blocks, pooling | angles)
    inner = helper.make_graph(
        pick(graph, blocks), graph.name, [*graph.input, *ends[0]], ends[1], own
    )
    half = convert_float_to_float16(
        helper.make_model(inner, opset_imports=model.opset_import, ir_version=model.ir_version),
        max_finite_val=_HIDES,
        keep_io_types=True,
        disable_shape_infer=True,
    )
    refill(graph.node, [*pick(graph, angles), *half.graph.node, *pick(graph, pooling)])
    refill(graph.initializer, [*half.graph.initializer, *others])
    del graph.value_info[:]
    return model


def _pooling(graph: GraphProto) -> set[int]:
    """The positions of the pooling's nodes and of all that depend on them."""
    found: set[int] = set()
    for position, node in enumerate(graph.node):
        if _OF_POOLING.match(node.name) and position not in found:
            found |= {position}.union(*(dependents_of(graph, name) for name in node.output))
    return found


def _angles(graph: GraphProto) -> set[int]:
    """The positions of the blocks' cosines and sines, and of what they are made of in floats."""
    makers = {name: position for position, node in enumerate(graph.node) for name in node.output}
    waiting = [
        position
        for position, node in enumerate(graph.node)
        if node.op_type in ("Cos", "Sin") and not _OF_POOLING.match(node.name)
    ]
    found: set[int] = set()
    while waiting:
        position = waiting.pop()
        if position in found:
            continue
        found.add(position)
        node = graph.node[position]
        if node.op_type != "Cast":  # of positions, which are whole numbers
            waiting += [makers[name] for name in node.input if name in makers]
    return found


def _read(nodes: Collection[NodeProto]) -> set[str]:
    return {name for node in nodes for name in node.input if name}


def _constants_to_initializers(graph: GraphProto) -> None:
    nodes = []
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = TensorProto()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            graph.initializer.append(tensor)
        else:
            nodes.append(node)
    refill(graph.node, nodes)


def _split_weights(
    graph: GraphProto, blocks: Collection[int], others: Collection[int]
) -> tuple[list[TensorProto], list[TensorProto]]:
    """The blocks' initializers, renamed where the others read them too, and those of the others."""
    read_by_blocks, read_by_others = _read(pick(graph, blocks)), _read(pick(graph, others))
    renamed = {
        each.name: f"{each.name}/half"
        for each in graph.initializer
        if each.name in read_by_blocks & read_by_others
    }
    for node in pick(graph, blocks):
        node.input[:] = [renamed.get(name, name) for name in node.input]
    own, left = [], []
    for tensor in graph.initializer:
        if tensor.name in read_by_others:
            left.append(tensor)
        if tensor.name in read_by_blocks:
            copy = TensorProto()
            copy.CopyFrom(tensor)
            copy.name = renamed.get(tensor.name, tensor.name)
            own.append(copy)
    return own, left
