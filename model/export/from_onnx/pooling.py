"""The pooling behind the states of a graph that a folder holds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from s2sent.model.artifact.manifest import POOLING_MASK
from s2sent.model.export import graph
from s2sent.model.export.from_onnx.folder import GivenEncoder
from s2sent.model.export.nodes import constant
from s2sent.model.runtime.encoder import LEAST_NORM, POOLED_OUTPUT

STATES = "block_states"  # [batch, length, width], what the pooling reads


def pooling_graph(encoder: GivenEncoder, width: int, ir_version: int) -> onnx.ModelProto:
    """States [batch, length, width] and mask to both outputs of an artifact, in float32."""
    prefix, value = graph.POOLING, helper.make_tensor_value_info
    given = "attention_mask" if encoder.pools_prompts else POOLING_MASK
    inputs = [
        value(STATES, TensorProto.FLOAT, ["batch", "length", width]),
        value(given, TensorProto.INT64, ["batch", "length"]),
    ]
    outputs = [value(name, TensorProto.FLOAT, ["batch", width]) for name in graph.OUTPUTS]
    made = helper.make_graph([], "pooling", inputs, outputs)

    def add(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        name = output if output in graph.OUTPUTS else prefix + output
        made.node.append(helper.make_node(operator, inputs, [name], prefix + output, **attributes))
        return name

    one = constant(made, f"{prefix}one", [1])
    least = constant(made, f"{prefix}least", LEAST_NORM, np.float32)
    first = constant(made, f"{prefix}first", 0)
    if encoder.pooling == "mean":
        mask = add("Cast", [given], "mask", to=TensorProto.FLOAT)
        row = add("Unsqueeze", [mask, one], "row")  # [batch, 1, length]
        total = add("MatMul", [row, STATES], "total")  # [batch, 1, width]
        tokens = add("ReduceSum", [mask, one], "tokens", keepdims=1)
        vector = add("Squeeze", [total, one], "vector")
        pooled = add("Div", [vector, tokens], POOLED_OUTPUT)
    elif encoder.pools_prompts:
        pooled = add("Gather", [STATES, first], POOLED_OUTPUT, axis=1)
    else:  # the first one behind the prompt
        mask = add("Cast", [given], "mask", to=TensorProto.FLOAT)
        place = add("ArgMax", [mask], "place", axis=1)  # [batch, 1]
        pooled = add("GatherND", [STATES, place], POOLED_OUTPUT, batch_dims=1)
    norm = add("ReduceL2", [pooled, one], "norm", keepdims=1)
    bounded = add("Max", [norm, least], "bounded")
    if encoder.normalize:
        add("Div", [pooled, bounded], "sentence_embedding")
    else:
        add("Identity", [pooled], "sentence_embedding")
    opsets = [helper.make_opsetid("", graph.OPSET)]
    return helper.make_model(made, opset_imports=opsets, ir_version=ir_version)
