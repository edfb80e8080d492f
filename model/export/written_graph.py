"""The graph of an artifact: traced, fused and packed or packed as traced, rounded, and written.

trace -> split -> fuse, pack [-> fp16]
trace packed -> split -> read early
    [-> int8 products] [-> int8 storage] -> join [-> early exits] [-> long texts] -> attention
    -> file
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.transformers.float16 import convert_float_to_float16
from sentence_transformers import SentenceTransformer
from torch import nn

from s2sent.model.export import graph
from s2sent.model.export.cpu.masked_attention import finish_attention
from s2sent.model.export.cpu.packing import pack_fused
from s2sent.model.export.early_exit import OwnGates, add_depth_input
from s2sent.model.export.int8.calibration import MEASURED_AT_ONCE, measure_tokens
from s2sent.model.export.int8.products import multiply_as_int8
from s2sent.model.export.int8.storage import store_int8
from s2sent.model.export.lengths import max_seq_length, require_one_branch
from s2sent.model.export.library_errors import step
from s2sent.model.export.options import STORED_AS_INT8, ExportError, ExportOptions
from s2sent.model.export.packed.families import has_packed_form, is_only_packed
from s2sent.model.export.packed.read_early import read_early
from s2sent.model.export.parity import parity_sentences
from s2sent.model.export.tracing.trace import TracedEncoder, backbone_config, trace_encoder
from s2sent.model.export.tracing.traceable import require_traceable
from s2sent.model.network.encoder import find_selector, find_template
from s2sent.model.runtime.encoder import padded_inputs
from s2sent.model.runtime.tokenizer import Tokenizer

PROJECTIONS = "pooling/selector.projections."  # how the names of exits' matrices begin


class WrittenGraph(NamedTuple):
    """What the manifest says of a graph: its inputs, its fused operators, whether it is packed."""

    inputs: tuple[str, ...]
    fused: dict[str, int]
    packed: bool


def write_graph(encoder: SentenceTransformer, path: Path, options: ExportOptions) -> WrittenGraph:
    """Trace, fuse and store the graph at ``path``."""
    require_one_branch(encoder)
    require_traceable(encoder[0].get_submodule("auto_model"), options)
    tokenizer = _served_tokenizer(encoder)
    path.parent.mkdir(parents=True)
    config = backbone_config(encoder)
    with step("traced", config):
        traced = trace_encoder(
            encoder,
            options.depths,
            packed=_is_traced_packed(encoder, options),
            fused=not options.standard_operators,
        )
    with step("optimised", config):
        whole, fused, packed = _finish(traced, encoder, tokenizer, options)
        graph.save(whole, str(path))
    return WrittenGraph(traced.inputs, fused, packed)


def _finish(
    traced: TracedEncoder,
    encoder: SentenceTransformer,
    tokenizer: Tokenizer,
    options: ExportOptions,
) -> tuple[onnx.ModelProto, dict[str, int], bool]:
    """The whole graph, fused or packed, and rounded; its fused operators; whether it is packed."""
    front, pooling = _split(traced)
    if traced.is_packed:
        fused, packed = _finish_packed(front), True
    else:
        front, fused, packed = _finish_encoder(front, encoder, options)
    if options.precision == "int8":
        _require_packed(packed and not options.standard_operators)
        _require_one_file(front)
        names = [value.name for value in front.graph.input]
        batches = _batches(encoder, tokenizer, names, options)
        multiply_as_int8(front.graph, measure_tokens(front, batches))
    if options.precision in STORED_AS_INT8:
        store_int8(front, tables_only=options.precision == "int8")
    if options.precision == "weight-int8":
        store_int8(pooling, by_row=PROJECTIONS)
    whole = graph.join(front, pooling)
    if options.depths:
        add_depth_input(whole, traced.exits, _own_gates(encoder, traced), traced.states)
    finish_attention(whole, fused, packed=packed, longest=max_seq_length(encoder))
    return whole, fused, packed


def _split(traced: TracedEncoder) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The encoder half and the pooling half, which reads every exit's blocks if each has a gate."""
    blocks, others = traced.pooled_blocks, traced.other_blocks
    read, unread = (blocks + others, []) if traced.gated else (blocks, others)
    unread += [state for state in traced.states.values() if state not in blocks + others]
    return graph.split(traced.model, traced.inputs, read, traced.outputs, also=unread)


def _own_gates(encoder: SentenceTransformer, traced: TracedEncoder) -> OwnGates | None:
    """What each depth gives by a gate of its own; None where one gate serves all depths."""
    if not traced.gated:
        return None
    width = int(backbone_config(encoder).hidden_size)
    dim = int(encoder.get_embedding_dimension() or 0)
    shapes = ((dim,), (len(traced.pooled_blocks), width))[: len(traced.results)]
    return OwnGates({**traced.gated, max(traced.exits): traced.results}, shapes)


def _is_traced_packed(encoder: SentenceTransformer, options: ExportOptions) -> bool:
    """Whether the packed form is traced: for ONNX Runtime on a CPU, or where there is no other.

    Raises `ExportError` where the encoder cannot be exported as asked.
    """
    config = backbone_config(encoder)
    if not is_only_packed(config):
        other = options.precision == "fp16" or options.standard_operators
        is_packed = has_packed_form(config) and not other
        if not is_packed:
            _require_states_as_read(encoder, options)
        return is_packed
    if options.precision == "fp16":
        raise ExportError(
            f"the graph of a {config.model_type} packs its tokens, for a CPU, and fp16 is for a"
            " GPU. Choose fp32, weight-int8 or int8."
        )
    return True


def _require_states_as_read(encoder: SentenceTransformer, options: ExportOptions) -> None:
    """Raise `ExportError` where a graph of padded tokens cannot hold the selector's states.

    Exits would pass on states that are divided for the selector, and ONNX Runtime's optimiser fails
    on those that are divided by their root mean square.
    """
    selector = find_selector(encoder)
    norm = selector.config.input_norm if selector else "none"
    kind = backbone_config(encoder).model_type
    if norm != "none" and options.depths:
        raise ExportError(
            f"input_norm is {norm!r}, with which this graph of a {kind} has no depths. Export it"
            " without depths, or train the selector with input_norm = 'none'."
        )
    if norm == "rms" and not options.standard_operators:
        raise ExportError(
            f"input_norm is 'rms', with which operators of a {kind} cannot be fused. Export it with"
            " standard operators, or train the selector with input_norm = 'length' or 'none'."
        )


def _finish_packed(front: onnx.ModelProto) -> dict[str, int]:
    """Move the choice of a token that is read ahead, in place; returns the fused operators."""
    read_early(front.graph)
    fused = sum(node.op_type == "MultiHeadAttention" for node in front.graph.node)
    return {"MultiHeadAttention": fused} if fused else {}


def _finish_encoder(
    front: onnx.ModelProto, encoder: SentenceTransformer, options: ExportOptions
) -> tuple[onnx.ModelProto, dict[str, int], bool]:
    """Fuse and pack; returns the encoder half, its fused operators, and whether it is packed."""
    fused: dict[str, int] = {}
    if not options.standard_operators:
        front, fused = _fuse(front, encoder, options)
    packed = options.precision != "fp16" and pack_fused(front.graph, fused)
    if options.precision == "fp16":
        # Its states are cast back, so that pooling stays in float32.
        front = convert_float_to_float16(front, keep_io_types=True, disable_shape_infer=True)
    return front, fused, packed


def _fuse(
    front: onnx.ModelProto, encoder: SentenceTransformer, options: ExportOptions
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """The encoder half with fused operators, and the count of each; raises `GraphError`."""
    config = backbone_config(encoder)
    front, fused = graph.fuse(
        front,
        num_heads=int(config.num_attention_heads),
        width=int(config.hidden_size),
        for_gpu=options.precision == "fp16",
        # The fused operator of the embeddings takes tables in float32 only.
        embeddings=options.precision not in STORED_AS_INT8,
        # The fused operator of a norm without a mean is none of the ONNX standard.
        norms=any(isinstance(part, nn.LayerNorm) for part in encoder[0].modules()),
    )
    if not options.allow_unfused_attention:
        selector = find_selector(encoder)
        unread = selector is not None and selector.config.block_choice == "skip_last"
        graph.require_fused_attention(fused, int(config.num_hidden_layers) - unread)
    return front, fused


def _require_packed(packed: bool) -> None:
    if not packed:
        raise ExportError(
            "int8 rounds each token by itself, so it needs packed tokens, which this encoder, or a"
            " graph of standard operators, does not have. Choose weight-int8."
        )


def _require_one_file(front: onnx.ModelProto) -> None:
    if graph.weight_bytes(front) > graph.LARGEST_GRAPH:
        raise ExportError(
            f"int8 measures the float32 graph, whose weights have {graph.weight_bytes(front):,}"
            f" bytes, and can do so up to {graph.LARGEST_GRAPH:,}. Choose weight-int8."
        )


def _served_tokenizer(encoder: SentenceTransformer) -> Tokenizer:
    """The tokenizer as the service has it; raises `ExportError` where that reads other tokens."""
    tokenizer = encoder.tokenizer
    if tokenizer.truncation_side != "right" or tokenizer.split_special_tokens:
        raise ExportError(
            f"the tokenizer has truncation_side {tokenizer.truncation_side!r} and"
            f" split_special_tokens {tokenizer.split_special_tokens}, and the service cuts texts on"
            " the right and reads special tokens in them. Set 'right' and false in"
            " tokenizer_config.json."
        )
    source = tokenizer.backend_tokenizer.to_str().encode()
    try:
        return Tokenizer(source, max_seq_length(encoder), find_template(encoder))
    except ValueError as error:
        raise ExportError(f"the tokenizer cannot be served: {error}") from None


def _batches(
    encoder: SentenceTransformer,
    tokenizer: Tokenizer,
    names: Sequence[str],
    options: ExportOptions,
) -> list[dict[str, NDArray[np.int64]]]:
    """The sentences that parity is checked on, as the inputs ``names``."""
    sentences = list(options.sentences or parity_sentences())
    rows = [row.input_ids for row in tokenizer.tokenize(sentences)]
    pad_id = int(backbone_config(encoder).pad_token_id or 0)
    return [
        padded_inputs(rows[start : start + MEASURED_AT_ONCE], names, pad_id)
        for start in range(0, len(rows), MEASURED_AT_ONCE)
    ]
