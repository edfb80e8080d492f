"""ONNX graph edits: split encoder from pooling, fuse the encoder, store weights as int8, join.

The trace of a `PooledEncoder` is one graph whose block states are outputs too. ONNX Runtime's
optimiser recognises an attention only while nothing but the next block reads its result. The graph
is therefore cut at the block states, its encoder half is fused, and its pooling half (the selector,
or plain pooling) is joined to it again.
"""

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)
from onnx.utils import Extractor
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_by_fusion

from model.artifact.weights_file import WEIGHTS_LOCATION

# A weight [in, out] has its output channels on axis 1, a table its rows on axis 0.
_CHANNEL_AXIS = {
    "Attention": 1,
    "MatMul": 1,
    "Gemm": 1,
    "EmbedLayerNormalization": 0,
    "Gather": 0,
}
OPSET = 18
LARGEST_GRAPH = 2_000_000_000  # bytes of weights in one file; a protocol buffer has at most 2 GiB
POOLING = "pooling/"  # what the names of the pooling's own tensors begin with

_ATTENTION_OPERATORS = ("Attention", "MultiHeadAttention")

# Smaller matrices (segment tables, relative position buckets) are not worth their error.
MIN_ROUNDED_ELEMENTS = 1024


class GraphError(Exception):
    """The traced graph does not have the shape an artifact must have."""


def split(
    graph: ModelProto,
    inputs: Sequence[str],
    blocks: Sequence[str],
    outputs: Sequence[str],
    *,
    also: Sequence[str] = (),
) -> tuple[ModelProto, ModelProto]:
    """Cut at the block states into (encoder: inputs -> blocks, pooling: blocks -> outputs).

    The states ``also`` are further outputs of the encoder, which the pooling does not read.
    """
    encoder = Extractor(graph).extract_model(list(inputs), [*also, *blocks])
    pooling = Extractor(graph).extract_model(["attention_mask", *blocks], list(outputs))
    _require_pooled_form(pooling, blocks)
    _rename_values(pooling, prefix=POOLING)
    return encoder, pooling


def fuse(
    encoder: ModelProto,
    *,
    num_heads: int,
    width: int,
    for_gpu: bool = False,
    embeddings: bool = True,
) -> tuple[ModelProto, dict[str, int]]:
    """Fuse attention, LayerNorm, GELU and ``embeddings``; also returns the count per operator.

    With ``for_gpu`` attention reads the lengths of the rows instead of their mask, because ONNX
    Runtime's one-kernel CUDA attention (and cuDNN's, on Hopper and later) takes only lengths. Rows
    padded on the left then give wrong results. The residual sum is fused with its LayerNorm for
    a GPU only: ONNX Runtime 1.31's CPU kernel for both is scalar, and takes an eighth of MiniLM's
    time (benchmarks/journal/2026-11-21-throughput.md).
    """
    encoder.producer_name = "pytorch"  # the optimiser asks who traced the graph
    logging.getLogger("onnxruntime.transformers").setLevel(logging.ERROR)
    options = FusionOptions("bert")
    options.use_raw_attention_mask(not for_gpu)
    options.enable_skip_layer_norm = for_gpu
    options.enable_embed_layer_norm = embeddings
    optimizer = optimize_by_fusion(encoder, "bert", num_heads, width, options)
    counts = optimizer.get_fused_operator_statistics()
    if all(entry.domain != "com.microsoft" for entry in optimizer.model.opset_import):
        optimizer.model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return optimizer.model, {name: count for name, count in sorted(counts.items()) if count}


def require_fused_attention(counts: dict[str, int], num_blocks: int) -> None:
    """Raise `GraphError` unless every one of ``num_blocks`` attentions is a fused operator."""
    found = sum(counts.get(name, 0) for name in _ATTENTION_OPERATORS)
    if found != num_blocks:
        raise GraphError(
            f"{found} of {num_blocks} attention blocks were fused. ONNX Runtime's optimiser does"
            " not know this backbone's attention; allow unfused attention to export it as it is."
        )


def to_half(encoder: ModelProto) -> ModelProto:
    """The encoder in float16, its block states cast back so that pooling stays in float32."""
    half: ModelProto = convert_float_to_float16(
        encoder, keep_io_types=True, disable_shape_infer=True
    )
    return half


def join(encoder: ModelProto, pooling: ModelProto) -> ModelProto:
    """Put the pooling behind the encoder again, in place; returns the whole graph."""
    produced = {name for node in encoder.graph.node for name in node.output}
    if clash := produced & {name for node in pooling.graph.node for name in node.output}:
        raise GraphError(f"both halves of the graph produce {sorted(clash)[:3]}")
    encoder.graph.node.extend(pooling.graph.node)
    encoder.graph.initializer.extend(pooling.graph.initializer)
    del encoder.graph.output[:]
    encoder.graph.output.extend(pooling.graph.output)
    del encoder.graph.value_info[:]  # shapes of tensors that fusion removed
    for node in encoder.graph.node:
        node.doc_string = ""
    encoder.producer_name = "s2sent"
    encoder.doc_string = ""
    return encoder


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


def store_int8(encoder: ModelProto) -> int:
    """Store rounded weights as int8 with a scale per channel, in place; returns how many.

    The weights must already lie on the grid of `round_channels`, so that their values stay the
    same. Raises `GraphError` where one does not.
    """
    axes = _weight_axes(encoder)
    stored = 0
    for tensor in list(encoder.graph.initializer):
        if tensor.name not in axes or tensor.data_type != TensorProto.FLOAT:
            continue
        weight = numpy_helper.to_array(tensor)
        if weight.ndim != 2 or weight.size < MIN_ROUNDED_ELEMENTS:
            continue
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


def _require_pooled_form(pooling: ModelProto, blocks: Sequence[str]) -> None:
    """Each block's states may feed one product with the pooling row and DCT basis, nothing else.

    That product leaves [batch, rows, dim], so no tensor of blocks x length x dim exists. A single
    block may be pooled in any way, such as by its maximum.
    """
    if len(blocks) == 1:
        return
    for block in blocks:
        readers = [node.op_type for node in pooling.graph.node if block in node.input]
        if [reader for reader in readers if reader != "Shape"] != ["MatMul"]:
            raise GraphError(
                f"the states {block} feed {readers or 'nothing'}; the pooled form"
                " reads them in one MatMul. Export a selector with num_frequencies of 1 or more."
            )


def _rename_values(half: ModelProto, *, prefix: str) -> None:
    """Names that only this half has: the tracer shares initializers and values between both halves,
    and only one half may be rounded, or work on fewer tokens."""
    outputs = {value.name for value in half.graph.output}
    own = {tensor.name for tensor in half.graph.initializer}
    own |= {name for node in half.graph.node for name in node.output} - outputs
    for node in half.graph.node:
        node.input[:] = [prefix + name if name in own else name for name in node.input]
        node.output[:] = [prefix + name if name in own else name for name in node.output]
        node.name = prefix + node.name
    for tensor in half.graph.initializer:
        tensor.name = prefix + tensor.name


def _weight_axes(graph: ModelProto) -> dict[str, int]:
    """The channel axis of every initializer that an operator reads as a weight or table."""
    axes = {}
    for node in graph.graph.node:
        if node.op_type in _CHANNEL_AXIS:
            axes.update(dict.fromkeys(node.input, _CHANNEL_AXIS[node.op_type]))
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
            nodes.append(helper.make_node("Gather", inputs, [result], result, axis=0))
        nodes += _widen(f"{rows}_int8", f"{rows}_scale", rows)
    replace_nodes(graph.graph, nodes)


def _widen(narrow: str, scale: str, wide: str) -> tuple[NodeProto, NodeProto]:
    """``wide`` = ``narrow`` in float32, times ``scale``."""
    cast = f"{wide}_wide"
    return (
        helper.make_node("Cast", [narrow], [cast], f"{wide}_widen", to=TensorProto.FLOAT),
        helper.make_node("Mul", [cast, scale], [wide], f"{wide}_unfold"),
    )


def replace_nodes(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    """Replace all nodes of the graph by ``nodes``, some of which may be its own."""
    copies = helper.make_graph(nodes, graph.name, [], []).node
    del graph.node[:]
    graph.node.extend(copies)


def with_branches(graph: GraphProto) -> Iterator[GraphProto]:
    """The branches of the graph's operators, innermost first, and the graph itself at the end."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from with_branches(attribute.g)
    yield graph


def drop_unread(graph: GraphProto) -> None:
    """Remove the initializers that no node reads."""
    read = {name for part in with_branches(graph) for node in part.node for name in node.input}
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name not in read:
            del graph.initializer[index]


def save(graph: ModelProto, path: str) -> None:
    """Check the graph against the ONNX specification and write it, as two files if it is large.

    The second has its weights, which ``graph`` then has no more.
    """
    if weight_bytes(graph) > LARGEST_GRAPH:
        onnx.save_model(graph, path, save_as_external_data=True, location=WEIGHTS_LOCATION)
        onnx.checker.check_model(path)
    else:
        onnx.checker.check_model(graph)
        onnx.save(graph, path)


def weight_bytes(graph: ModelProto) -> int:
    """The bytes of the graph's initializers, which make nearly all of its size."""
    return sum(len(tensor.raw_data) for tensor in graph.graph.initializer)
