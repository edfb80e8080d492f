"""Static embeddings: a table of token vectors and their mean, as a graph, without torch.

sentence-transformers' StaticEmbedding and model2vec (https://github.com/MinishLab/model2vec) save a
table [ids, width] as safetensors (https://huggingface.co/docs/safetensors) and a tokenizer, whose
special tokens are not among those that are averaged.
"""

import json
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from s2sent.model.export.from_onnx.folder import GivenGraphError
from s2sent.model.export.graph import OPSET

WEIGHTS = "model.safetensors"
NAMES = ("embedding.weight", "embeddings")  # of sentence-transformers, of model2vec
_DTYPES = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
_LONGEST_HEADER = 100_000_000  # bytes, as the format allows


def static_graph(folder: Path) -> onnx.ModelProto:
    """Token ids [batch, length] to their vectors [batch, length, width] in float32."""
    rows = _read_table(folder / WEIGHTS)
    value = helper.make_tensor_value_info
    ids, mask = (
        value(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask")
    )
    states = value("last_hidden_state", TensorProto.FLOAT, ["batch", "length", rows.shape[1]])
    look_up = helper.make_node("Gather", ["table", "input_ids"], [states.name], "look_up", axis=0)
    table = numpy_helper.from_array(rows, "table")
    made = helper.make_graph([look_up], "static", [ids, mask], [states], [table])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def static_tokenizer(content: bytes) -> bytes:
    """The tokenizer without what adds special tokens, cuts or pads."""
    fields = json.loads(content)
    return json.dumps(
        fields | {"post_processor": None, "truncation": None, "padding": None}, ensure_ascii=False
    ).encode()


def _read_table(path: Path) -> NDArray[np.float32]:
    """The one tensor of a safetensors file; raises `GivenGraphError` for any other content."""
    try:
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        if not 0 < size <= min(len(content) - 8, _LONGEST_HEADER):
            raise ValueError("its header does not fit")
        header = json.loads(content[8 : 8 + size])
        header.pop("__metadata__", None)
        if len(header) != 1 or not {*header} <= {*NAMES}:
            raise ValueError(f"it holds {', '.join(header)[:200]} instead of one table")
        (tensor,) = header.values()
        begin, end = tensor["data_offsets"]
        flat = np.frombuffer(content[8 + size + begin : 8 + size + end], _DTYPES[tensor["dtype"]])
        table = flat.reshape(tensor["shape"]).astype(np.float32)
        if table.ndim != 2 or not table.size or not np.isfinite(table).all():
            raise ValueError("its table has not two axes of finite numbers")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GivenGraphError(f"{path} cannot be read ({error}): fetch the model again.") from error
    return table
