"""Packed encoders as exports once were: a product each for query, key and value."""

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from s2sent.model.export.graph import replace_nodes, with_branches


def separate_projections(graph: GraphProto) -> int:
    """Make every joint product three, in place; returns how many there were."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    separated = 0
    for part in with_branches(graph):
        makers = {name: node for node in part.node for name in node.output}
        nodes: list[NodeProto] = []
        for node in part.node:
            if node.op_type != "Split" or node.output[0] not in _queries(part):
                nodes.append(node)
                continue
            unpack = makers[node.input[0]]
            joint = makers[unpack.input[0]]
            nodes = [
                each for each in nodes if each.output[0] not in (*unpack.output, *joint.output)
            ]
            tokens, weight, bias = joint.input
            weights, biases = (np.split(tensors[name], 3, axis=-1) for name in (weight, bias))
            for name, own_weight, own_bias in zip(node.output, weights, biases, strict=True):
                own = {f"{name}_weight": own_weight, f"{name}_bias": own_bias}
                graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in own.items())
                packed = f"{name}/packed"
                nodes.append(helper.make_node("Gemm", [tokens, *own], [packed]))
                nodes.append(helper.make_node("Gather", [packed, unpack.input[1]], [name], axis=0))
            separated += 1
        replace_nodes(part, nodes)
    return separated


def _queries(part: GraphProto) -> set[str]:
    kinds = ("Attention", "MultiHeadAttention")
    return {node.input[0] for node in part.node if node.op_type in kinds}
