"""The pooling behind the states of a graph that a folder holds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from s2sent.model.artifact.manifest import POOLING_MASK
from s2sent.model.export import graph
from s2sent.model.export.from_onnx.folder import GivenEncoder
from s2sent.model.runtime.encoder import LEAST_NORM, POOLED_OUTPUT

STATES = "block_states"  # [batch, length, width], what the pooling reads
OUTPUTS = ("sentence_embedding", POOLED_OUTPUT)


def pooling_graph(encoder: GivenEncoder, width: int, ir_version: int) -> onnx.ModelProto:
    """States [batch, length, width] and mask to both outputs of an artifact, in float32."""
    prefix, nodes = graph.POOLING, []

    def add(operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        name = output if output in OUTPUTS else prefix + output
        nodes.append(helper.make_node(operator, [*inputs], [name], prefix + output, **attributes))
        return name

    one, least, first = (prefix + name for name in ("one", "least", "first"))
    constants = [
        numpy_helper.from_array(np.array([1], np.int64), one),
        numpy_helper.from_array(np.array(LEAST_NORM, np.float32), least),
        numpy_helper.from_array(np.array(0, np.int64), first),
    ]
    given = "attention_mask" if encoder.pools_prompts else POOLING_MASK
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
    value = helper.make_tensor_value_info
    made = helper.make_graph(
        nodes,
        "pooling",
        [
            value(STATES, TensorProto.FLOAT, ["batch", "length", width]),
            value(given, TensorProto.INT64, ["batch", "length"]),
        ],
        [value(name, TensorProto.FLOAT, ["batch", width]) for name in OUTPUTS],
        constants,
    )
    opsets = [helper.make_opsetid("", graph.OPSET)]
    return helper.make_model(made, opset_imports=opsets, ir_version=ir_version)
