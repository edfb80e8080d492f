"""Weights that are stored as int8 with a scale for each of their channels, in a graph."""

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from s2sent.model.export.graph import GraphError
from s2sent.model.export.nodes import make_op, refill

# A weight [in, out] has its output channels on axis 1, a table its rows on axis 0. Gemm's may also
# be [out, in] (transB).
_TABLES = {"EmbedLayerNormalization": 0, "Gather": 0}
_CHANNEL_AXIS = {"Attention": 1, "MatMul": 1, "Gemm": 1} | _TABLES
# Smaller matrices (segment tables, relative position buckets) are not worth their error.
MIN_ROUNDED_ELEMENTS = 1024


def round_channels(weight: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """``weight`` on each channel's int8 grid along ``axis``: round(w / s) * s, s = max|w| / 127."""
    quantized, scale = quantize_channels(weight, axis)
    return quantized * scale


def quantize_channels(
    weight: NDArray[np.float32], axis: int
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """``weight`` as int8 and the scale of each channel along ``axis``, both of two axes."""
    largest = np.abs(weight).max(axis=1 - axis, keepdims=True)
    scale = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)
    return np.rint(weight / scale).astype(np.int8), scale


def store_int8(encoder: ModelProto, *, tables_only: bool = False, by_row: str = "") -> int:
    """Store rounded weights as int8 with a scale per channel, in place; returns how many.

    With ``tables_only`` only embedding tables, as in `model.export.int8.rounding.round_weights`;
    with ``by_row`` only weights whose names begin with it, and with a scale for each row.
    The weights must already lie on the grid of `round_channels`, so that their values stay the
    same. Raises `GraphError` where one does not.
    """
    axes = _weight_axes(encoder, _TABLES if tables_only else _CHANNEL_AXIS)
    if by_row:
        axes = {name: 0 for name in axes if name.startswith(by_row)}
    stored = 0
    for tensor in list(encoder.graph.initializer):
        if tensor.name not in axes or tensor.data_type != TensorProto.FLOAT:
            continue
        if not _is_large(tensor):
            continue
        weight = numpy_helper.to_array(tensor)
        quantized, scale = quantize_channels(weight, axes[tensor.name])
        if not np.allclose(quantized * scale, weight, rtol=1e-6, atol=0):
            raise GraphError(f"{tensor.name} is not on the int8 grid of its channels")
        encoder.graph.initializer.remove(tensor)
        for part, values in (("int8", quantized), ("scale", scale)):
            stored_part = numpy_helper.from_array(values, f"{tensor.name}_{part}")
            encoder.graph.initializer.append(stored_part)
        readers = {node.op_type for node in encoder.graph.node if tensor.name in node.input}
        if readers == {"Gather"}:
            _unfold_rows(encoder, tensor.name)
        else:
            _unfold(encoder, tensor.name)
        stored += 1
    return stored


def round_tables(encoder: ModelProto) -> None:
    """Round the embedding tables in float32 to the grid that `store_int8` stores, in place."""
    axes = _weight_axes(encoder, _TABLES)
    for tensor in encoder.graph.initializer:
        if tensor.name in axes and tensor.data_type == TensorProto.FLOAT and _is_large(tensor):
            rounded = round_channels(numpy_helper.to_array(tensor), axes[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))


def _is_large(tensor: TensorProto) -> bool:
    return len(tensor.dims) == 2 and prod(tensor.dims) >= MIN_ROUNDED_ELEMENTS


def fold_int8(encoder: ModelProto) -> None:
    """Restore the matrices of `store_int8` as float32 tensors, in place; tables stay int8."""
    tensors = {tensor.name: tensor for tensor in encoder.graph.initializer}
    makers = {node.output[0]: node for node in encoder.graph.node}
    for node in list(encoder.graph.node):
        cast = makers.get(node.input[0]) if node.op_type == "Mul" else None
        if cast is None or cast.op_type != "Cast" or f"{node.output[0]}_int8" not in tensors:
            continue
        name = node.output[0]
        parts = [tensors[f"{name}_{part}"] for part in ("int8", "scale")]
        whole, scale = map(numpy_helper.to_array, parts)
        encoder.graph.initializer.append(numpy_helper.from_array(whole * scale, name))
        for part in parts:
            encoder.graph.initializer.remove(part)
        for old in (cast, node):
            encoder.graph.node.remove(old)


def _weight_axes(graph: ModelProto, operators: Mapping[str, int]) -> dict[str, int]:
    """The channel axis of every initializer that one of ``operators`` reads as a weight or table.

    A table is looked up by rows. One by the distance of two tokens has these on its last axis, and
    is not rounded (`model.export.packed.encoder.ByDistance`).
    """
    axes = {}
    for node in graph.graph.node:
        given = {item.name: item.i for item in node.attribute}
        if node.op_type in operators and not (node.op_type == "Gather" and given.get("axis")):
            axis = 0 if given.get("transB") else operators[node.op_type]
            axes.update(dict.fromkeys(node.input, axis))
    return axes


def _unfold(graph: ModelProto, name: str) -> None:
    """Compute the matrix from ``name``_int8 and its scale, ahead of all other nodes.

    Every ONNX Runtime folds Cast and Mul to float32 at load. A DequantizeLinear before a MatMul
    would by default become a kernel that also rounds the activations, which changes embeddings by
    about 1e-3.
    """
    for position, node in enumerate(_widen(f"{name}_int8", f"{name}_scale", name)):
        graph.graph.node.insert(position, node)


def _unfold_rows(graph: ModelProto, name: str) -> None:
    """Dequantize only the rows that are looked up, so that the table stays int8 in memory."""
    nodes: list[NodeProto] = []
    for node in graph.graph.node:
        if name not in node.input:
            nodes.append(node)
            continue
        rows, indices = node.output[0], node.input[1]
        for part in ("int8", "scale"):
            inputs, result = [f"{name}_{part}", indices], f"{rows}_{part}"
            nodes.append(make_op("Gather", inputs, result, axis=0))
        nodes += _widen(f"{rows}_int8", f"{rows}_scale", rows)
    refill(graph.graph.node, nodes)


def _widen(narrow: str, scale: str, wide: str) -> tuple[NodeProto, NodeProto]:
    """``wide`` = ``narrow`` in float32, times ``scale``."""
    cast = make_op("Cast", [narrow], f"{wide}_wide", to=TensorProto.FLOAT)
    return cast, make_op("Mul", [*cast.output, scale], wide)
