"""Operators that are wrong or slow on a GPU in ONNX Runtime 1.31, and what stands in their place.

NonZero                 the places of the tokens as an input: its count, which is read back from
                        the device, may be read too early (onnxruntime#26512)
Softmax, other axes     Exp and ReduceSum: it takes memory that belongs to no stream, which
                        another run may be given (onnxruntime#22554)
Expand                  a sum with zeros of the shape: likewise (onnxruntime#32342, #32354)
Attention               MultiHeadAttention, by the mask where it can be, so that no [batch, 1,
                        length, length] of hidden keys is made
"""

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from s2sent.model.artifact.manifest import TOKEN_PLACES
from s2sent.model.export.cpu.masked_attention import HIDDEN_KEYS
from s2sent.model.export.cpu.packing import MASK
from s2sent.model.export.graph import GraphError, weights_as_inputs
from s2sent.model.export.nodes import constant, make_op, refill
from s2sent.model.runtime.encoder import token_places

# What a GPU's graph has none of; those that are read back from the device among them.
AVOIDED = frozenset(("NonZero", "Expand", "If", "Loop", "Scan", "Compress", "Unique"))

_MASK = "gpu/mask"  # int32 [batch, length]
_Made = list[NodeProto] | None  # what stands in a node's place; None for the node itself


def avoid(model: ModelProto) -> None:
    """Replace the operators in place; the graph has no branches. Raises `GraphError`."""
    graph = model.graph
    kinds = _kinds(model)
    replaced: Mapping[str, Callable[[NodeProto], _Made]] = {
        "NonZero": lambda node: _places(graph, node),
        "Softmax": lambda node: _shares(graph, node),
        "Expand": lambda node: _sum_with_zeros(node, kinds.get(node.input[0], TensorProto.FLOAT)),
        "Attention": _attention,
    }
    nodes: list[NodeProto] = []
    for node in graph.node:
        made = replaced[node.op_type](node) if node.op_type in replaced else None
        for each in made or ():
            each.name = f"{node.name}/{each.output[0]}"  # the pooling's nodes are known by theirs
        nodes += [node] if made is None else made
    if any(_MASK in node.input for node in nodes):
        nodes.insert(0, make_op("Cast", [MASK], _MASK, to=TensorProto.INT32))
    refill(graph.node, nodes)
    places = {name for node in nodes for name in node.input if name.startswith(TOKEN_PLACES)}
    graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.INT64, ["tokens"])
        for name in places or {TOKEN_PLACES}  # also of padded tokens: it says what the graph is for
    )
    if found := AVOIDED.intersection(node.op_type for node in nodes):
        raise GraphError(f"it has {', '.join(sorted(found))}, which a GPU does not run well")


def _kinds(model: ModelProto) -> dict[str, int]:
    """The types that ONNX infers; behind ONNX Runtime's own operators, which give floats, none."""
    inferred = onnx.shape_inference.infer_shapes(weights_as_inputs(model))
    values = (*inferred.graph.value_info, *inferred.graph.input)
    return {each.name: each.type.tensor_type.elem_type for each in values}


def _places(graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """[1, tokens], as NonZero of the flattened mask gives it, or of the mask behind a prefix."""
    makers = {name: each for each in graph.node for name in each.output}
    value, passed, prefix = node.input[0], [], 0
    while value in makers and makers[value].op_type in ("Reshape", "Cast", "Slice"):
        maker = makers[value]
        passed.append(maker.op_type)
        if maker.op_type == "Slice":
            start, axis = (_value_of(graph, maker.input[place]) for place in (1, 3))
            prefix = start if axis == 1 else -1
        value = maker.input[0]
    if value != MASK or "Reshape" not in passed or passed.count("Slice") > 1 or prefix < 0:
        raise GraphError("it has a NonZero of something else than its mask")
    axis_0 = constant(graph, f"{node.output[0]}/axis", [0])
    name = token_places(behind=prefix)
    return [make_op("Unsqueeze", [name, axis_0], node.output[0])]


def _value_of(graph: GraphProto, name: str) -> int:
    """The one number of a constant; -1 for any other value."""
    tensors = [each for each in graph.initializer if each.name == name]
    tensors += [
        node.attribute[0].t
        for node in graph.node
        if node.op_type == "Constant" and node.output[0] == name
    ]
    values = numpy_helper.to_array(tensors[0]).reshape(-1) if tensors else np.array([])
    return int(values[0]) if values.size == 1 else -1


def _shares(graph: GraphProto, node: NodeProto) -> _Made:
    axis = next((each.i for each in node.attribute if each.name == "axis"), -1)
    if axis == -1:
        return None
    values, result = node.input[0], node.output[0]
    largest, below, powers, total = (
        f"{result}/{part}" for part in ("largest", "below", "powers", "total")
    )
    axes = constant(graph, f"{result}/axis", [axis])
    return [
        make_op("ReduceMax", [values, axes], largest, keepdims=1),
        make_op("Sub", [values, largest], below),
        make_op("Exp", [below], powers),
        make_op("ReduceSum", [powers, axes], total, keepdims=1),
        make_op("Div", [powers, total], result),
    ]


def _sum_with_zeros(node: NodeProto, kind: int) -> list[NodeProto]:
    values, shape = node.input
    result = node.output[0]
    zeros = f"{result}/zeros"
    zero = helper.make_tensor("", kind, [1], [0])
    adding = "Or" if kind == TensorProto.BOOL else "Add"
    return [
        make_op("ConstantOfShape", [shape], zeros, value=zero),
        make_op(adding, [values, zeros], result),
    ]


def _attention(node: NodeProto) -> _Made:
    """MultiHeadAttention in place of ONNX's Attention with hidden keys or a bias."""
    given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if node.domain or len(node.input) != 4 or "q_num_heads" not in given:
        return None
    hides = node.input[3].endswith(HIDDEN_KEYS)
    inputs = [*node.input[:3], "", *([_MASK] if hides else ["", node.input[3]])]
    scale = {"scale": given["scale"]} if "scale" in given else {}
    options = {"num_heads": given["q_num_heads"], **scale}
    domain = "com.microsoft"
    return [make_op("MultiHeadAttention", inputs, node.output[0], domain=domain, **options)]
