"""ONNX graph edits: split encoder from pooling, fuse the encoder, join them, save.

The trace of a `PooledEncoder` is one graph whose block states are outputs too. ONNX Runtime's
optimiser recognises an attention only while nothing but the next block reads its result. The graph
is therefore cut at the block states, its encoder half is fused, and its pooling half (the selector,
or plain pooling) is joined to it again.
"""

import logging
from collections.abc import Sequence

import onnx
from onnx import ModelProto, TensorProto, helper
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_by_fusion

from s2sent.model.artifact.errors import UserError
from s2sent.model.artifact.weights_file import WEIGHTS_LOCATION
from s2sent.model.export.nodes import makers_of, pick, read_by, refill, sort, with_branches
from s2sent.model.runtime.encoder import POOLED_OUTPUT

OPSET = 18
LARGEST_GRAPH = 2_000_000_000  # bytes of weights in one file; a protocol buffer has at most 2 GiB
OUTPUTS = ("sentence_embedding", POOLED_OUTPUT)  # of every graph, normalised or not, and before
LARGE_WEIGHT = 1_000  # bytes; sizes and axes have fewer
POOLING = "pooling/"  # what the names of the pooling's own tensors begin with

_ATTENTION_OPERATORS = ("Attention", "MultiHeadAttention")


class GraphError(UserError):
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
    encoder = _part(graph, inputs, [*also, *blocks])
    pooling = _part(graph, [*inputs, *blocks], outputs)
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
    norms: bool = True,
) -> tuple[ModelProto, dict[str, int]]:
    """Fuse attention, GELU, ``norms`` and ``embeddings``; also returns the count per operator.

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
    options.enable_layer_norm = norms
    options.enable_skip_layer_norm = for_gpu and norms
    options.enable_embed_layer_norm = embeddings
    # For attention that is not fused it makes operators that ONNX Runtime cannot run.
    options.enable_rotary_embeddings = False
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


def join(encoder: ModelProto, pooling: ModelProto) -> ModelProto:
    """Put the pooling behind the encoder again, in place; returns the whole graph."""
    produced = {name for node in encoder.graph.node for name in node.output}
    if clash := produced & {name for node in pooling.graph.node for name in node.output}:
        raise GraphError(f"both halves of the graph produce {sorted(clash)[:3]}")
    known = produced | {value.name for value in encoder.graph.input}
    encoder.graph.input.extend(each for each in pooling.graph.input if each.name not in known)
    encoder.graph.node.extend(pooling.graph.node)
    encoder.graph.initializer.extend(pooling.graph.initializer)
    refill(encoder.graph.output, pooling.graph.output)
    del encoder.graph.value_info[:]  # shapes of tensors that fusion removed
    for node in encoder.graph.node:
        node.doc_string = ""
    encoder.producer_name = "s2sent"
    encoder.doc_string = ""
    return encoder


def _part(model: ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> ModelProto:
    """The part between ``inputs`` and ``outputs`` of a model, with what branches of an If read."""
    whole = model.graph
    names = {*inputs, *outputs}
    known = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names}
    known |= {value.name: value for value in (*whole.input, *whole.output)}
    nodes = pick(whole, makers_of(whole, outputs, inputs))
    read = {name for node in nodes for name in read_by(node)}
    weights = [tensor for tensor in whole.initializer if tensor.name in read]
    ends = [known[name] for name in inputs], [known[name] for name in outputs]
    return helper.make_model(
        helper.make_graph(nodes, whole.name, *ends, weights),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )


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


def save(graph: ModelProto, path: str) -> None:
    """Sort the graph, check it against the ONNX specification and write it, as two files if large.

    The second has its weights, which ``graph`` then has no more. Raises `GraphError` for a graph
    that the specification does not allow.
    """
    for part in list(with_branches(graph.graph)):
        sort(part)
    try:
        if weight_bytes(graph) > LARGEST_GRAPH:
            onnx.save_model(graph, path, save_as_external_data=True, location=WEIGHTS_LOCATION)
            onnx.checker.check_model(path)
        else:
            onnx.checker.check_model(graph)
            onnx.save(graph, path)
    except onnx.checker.ValidationError as error:
        said = str(error).strip().partition("\n")[0].rstrip(".")
        raise GraphError(
            f"the graph is none that ONNX allows ({said}): export it with standard operators, or"
            " choose a backbone of a family in docs/encoders.md."
        ) from None


def weights_as_inputs(model: ModelProto) -> ModelProto:
    """The same graph, its large weights as inputs: ONNX's own tools take at most 2 GiB."""
    graph = model.graph
    large = {each.name: each for each in graph.initializer if len(each.raw_data) > LARGE_WEIGHT}
    inputs = [helper.make_tensor_value_info(n, w.data_type, w.dims) for n, w in large.items()]
    small = [each for each in graph.initializer if each.name not in large]
    return helper.make_model(
        helper.make_graph(graph.node, graph.name, [*graph.input, *inputs], graph.output, small),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )


def weight_bytes(graph: ModelProto) -> int:
    """The bytes of the graph's initializers, which make nearly all of its size."""
    return sum(len(tensor.raw_data) for tensor in graph.graph.initializer)
