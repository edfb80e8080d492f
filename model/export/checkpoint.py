"""Export of a checkpoint to an artifact: trace, fuse, round, compare with torch, seal.

    load_encoder -> PooledEncoder -> optimum trace -> split -> fuse
        -> pack [-> int8 products] [-> int8 storage], or fp16
        -> join [-> early exits] -> parity with torch, at every depth -> sealed folder

The artifact appears at its target only if every step succeeds.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from model.artifact.manifest import CANARY, CONFIG, MODEL, Manifest
from model.artifact.reader import Artifact
from model.artifact.writer import seal, staged
from model.export import graph
from model.export.early_exit import OwnGates, add_depth_input
from model.export.int8 import MEASURED_AT_ONCE, measure_tokens, multiply_as_int8
from model.export.packing import pack
from model.export.parity import ParityReport, check_parity, parity_by_depth, parity_sentences
from model.export.trace import TracedEncoder, backbone_config, trace_encoder
from model.network.encoder import find_selector, get_pooling, load_encoder
from model.network.pooled import stopped_at
from model.network.selector import SelectorConfig
from model.runtime.encoder import OnnxEncoder

Precision = Literal["fp32", "fp16", "weight-int8", "int8"]
STORED_AS_INT8: frozenset[Precision] = frozenset(("weight-int8", "int8"))
CANARY_TEXT = "A canary sings while the air is good."
_PACKAGES = ("torch", "transformers", "sentence-transformers", "optimum-onnx", "onnxruntime")
TRAINING_RECORD = "training.json"  # what the trainer leaves in a checkpoint for the manifest


class ExportError(Exception):
    """The checkpoint cannot be exported as asked; the message says why and what to change."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How to export a checkpoint, and what the manifest cannot take from it.

    backbone: the backbone's name and licence, for the manifest.
    sentences: the texts that parity is checked on; the built-in ones when empty.
    depths: the blocks after which the encoder can also stop, besides the last one.
    standard_operators: fuse nothing, so that the graph has only operators of the ONNX standard,
        as TensorRT and other runtimes require.
    """

    precision: Precision = "fp32"
    name: str = "s2sent"
    backbone: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    sentences: Sequence[str] = ()
    depths: Sequence[int] = ()
    allow_unfused_attention: bool = False
    standard_operators: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise ExportError(
                f"precision {self.precision!r} is not one of {', '.join(get_args(Precision))}."
            )


def export_checkpoint(checkpoint: Path, target: Path, options: ExportOptions) -> Artifact:
    """Export the sentence-transformers checkpoint as an artifact at ``target``.

    It may have a selector or none: `model.network.encoder.load_encoder` says what it may hold.
    Raises `model.network.encoder.CheckpointError`, `ExportError`, `model.export.graph.GraphError`,
    `model.export.parity.ParityError` or `model.artifact.manifest.ArtifactError`, and then leaves
    ``target`` as it was.
    """
    encoder = load_encoder(checkpoint).to("cpu")
    if selector := find_selector(encoder):
        _refuse_batch_dependence(selector.config)
    sentences = list(options.sentences or parity_sentences())
    sentences.append(" ".join(parity_sentences()))  # longer than any encoder reads
    unrounded = encoder
    if options.precision in STORED_AS_INT8:
        # `multiply_as_int8` rounds the matrices of its products itself; the tables are left.
        encoder = round_weights(encoder, tables_only=options.precision == "int8")
    with staged(target, overwrite=options.overwrite) as folder:
        written = _write_graph(encoder, folder / MODEL, options)
        _write_companions(encoder, folder)
        manifest = _describe(encoder, checkpoint, options, written)
        served = OnnxEncoder(Artifact(folder, manifest))

        def compare(depth: int | None = None) -> ParityReport:
            return check_parity(
                options.precision,
                sentences,
                onnx=partial(served.encode, batch_size=len(sentences), depth=depth),
                torch=_encode(encoder, sentences, depth),
                unrounded=_encode(unrounded, sentences, depth),
            )

        seal(folder, replace(manifest, parity=parity_by_depth(manifest.depths, compare)))
    return Artifact.open(target)


def _refuse_batch_dependence(config: SelectorConfig) -> None:
    if config.mask == "none" or config.weight_norm == "global":
        raise ExportError(
            f"a selector with mask={config.mask!r} and weight_norm={config.weight_norm!r} makes an"
            " embedding depend on its batch, and an artifact must not. Train with mask='valid' and"
            " weight_norm='softmax_blocks' instead."
        )


class _Written(NamedTuple):
    """What the manifest says of a graph: its inputs, its fused operators, whether it is packed."""

    inputs: tuple[str, ...]
    fused: dict[str, int]
    packed: bool


def _write_graph(encoder: SentenceTransformer, path: Path, options: ExportOptions) -> _Written:
    """Trace, fuse and store the graph at ``path``."""
    path.parent.mkdir(parents=True)
    traced = trace_encoder(encoder, path, options.depths)
    blocks, other_blocks = traced.pooled_blocks, traced.other_blocks
    read_here, others = (blocks + other_blocks, []) if traced.gated else (blocks, other_blocks)
    front, pooling = graph.split(
        traced.model, traced.inputs, read_here, traced.outputs, also=others
    )
    fused: dict[str, int] = {}
    if not options.standard_operators:
        front, fused = _fuse(front, backbone_config(encoder), options)
    packed = options.precision != "fp16" and pack(front.graph)
    if packed:  # attention is still one operator, under another name
        fused["MultiHeadAttention"] = fused.pop("Attention")
    if options.precision == "fp16":
        front = graph.to_half(front)
    if options.precision == "int8":
        _require_packed(packed)
        multiply_as_int8(front.graph, measure_tokens(front, _batches(encoder, front, options)))
    if options.precision in STORED_AS_INT8:
        graph.store_int8(front)
    whole = graph.join(front, pooling)
    if options.depths:
        add_depth_input(whole, traced.exits, _own_gates(encoder, traced))
    graph.save(whole, str(path))
    return _Written(traced.inputs, fused, packed)


def _own_gates(encoder: SentenceTransformer, traced: TracedEncoder) -> OwnGates | None:
    """What each depth gives by a gate of its own; None where one gate serves all depths."""
    if not traced.gated:
        return None
    width = int(backbone_config(encoder).hidden_size)
    shapes = ((width,), (len(traced.pooled_blocks), width))[: len(traced.results)]
    return OwnGates({**traced.gated, max(traced.exits): traced.results}, shapes)


def _fuse(
    front: onnx.ModelProto, config: Any, options: ExportOptions
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """The encoder half with fused operators, and the count of each; raises `GraphError`."""
    front, fused = graph.fuse(
        front,
        num_heads=int(config.num_attention_heads),
        width=int(config.hidden_size),
        for_gpu=options.precision == "fp16",
        # The fused operator of the embeddings takes tables in float32 only.
        embeddings=options.precision not in STORED_AS_INT8,
    )
    if not options.allow_unfused_attention:
        graph.require_fused_attention(fused, int(config.num_hidden_layers))
    return front, fused


def _require_packed(packed: bool) -> None:
    if not packed:
        raise ExportError(
            "int8 rounds each token by itself, so it needs packed tokens, which this encoder, or a"
            " graph of standard operators, does not have. Choose weight-int8."
        )


def _batches(
    encoder: SentenceTransformer, front: onnx.ModelProto, options: ExportOptions
) -> list[dict[str, NDArray[np.int64]]]:
    """The sentences that parity is checked on, as inputs of the graph."""
    names = [value.name for value in front.graph.input]
    sentences = list(options.sentences or parity_sentences())
    batches = []
    for start in range(0, len(sentences), MEASURED_AT_ONCE):
        tokens = encoder.tokenizer(
            sentences[start : start + MEASURED_AT_ONCE],
            padding=True,
            truncation=True,
            max_length=_max_seq_length(encoder),
            return_tensors="np",
        )
        batches.append({name: tokens[name].astype(np.int64) for name in names})
    return batches


def round_weights(
    encoder: SentenceTransformer, *, tables_only: bool = False
) -> SentenceTransformer:
    """A copy with the backbone's matrices on the int8 grid of their output channels or rows.

    With ``tables_only`` only the embedding tables are rounded.
    """
    encoder = copy.deepcopy(encoder)
    parts = [
        part
        for part in encoder[0].modules()
        if isinstance(part, torch.nn.Embedding) or not tables_only
    ]
    with torch.no_grad():
        for parameter in (p for part in parts for p in part.parameters(recurse=False)):
            if parameter.ndim == 2 and parameter.numel() >= graph.MIN_ROUNDED_ELEMENTS:
                rounded = graph.round_channels(parameter.numpy(), axis=0)
                parameter.copy_(torch.from_numpy(rounded))
    return encoder


def _write_companions(encoder: SentenceTransformer, folder: Path) -> None:
    """Write tokenizer, backbone configuration, pooling and canary, as other servers name them."""
    encoder.tokenizer.save_pretrained(folder, legacy_format=False)
    backbone_config(encoder).to_json_file(folder / CONFIG, use_diff=False)
    pooling = get_pooling(encoder)
    modes = {
        "word_embedding_dimension": pooling.embedding_dimension,
        "pooling_mode_cls_token": pooling.pooling_mode == "cls",
        "pooling_mode_mean_tokens": pooling.pooling_mode == "mean",
    }
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(modes))
    vector = _encode(encoder, [CANARY_TEXT])[0]
    canary = {"text": CANARY_TEXT, "embedding": [round(float(x), 8) for x in vector]}
    (folder / CANARY).write_text(json.dumps(canary))


def _describe(
    encoder: SentenceTransformer,
    checkpoint: Path,
    options: ExportOptions,
    written: _Written,
) -> Manifest:
    """The manifest without the parity report and the files."""
    record = checkpoint / TRAINING_RECORD
    training = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    config, pooling = backbone_config(encoder), get_pooling(encoder)
    selector = find_selector(encoder)
    return Manifest(
        name=options.name,
        dim=pooling.embedding_dimension,
        max_seq_length=_max_seq_length(encoder),
        pooling=str(pooling.pooling_mode),
        normalize=isinstance(encoder[-1], Normalize),
        precision=options.precision,
        inputs=written.inputs,
        selector=asdict(selector.config) if selector else None,
        backbone={"architecture": config.model_type, "num_blocks": config.num_hidden_layers}
        | options.backbone,
        prompts={name: text for name, text in encoder.prompts.items() if text},
        training=training,
        scores=options.scores,
        parity={},
        fused=written.fused,
        packed=written.packed,
        versions={name: version(name) for name in _PACKAGES},
        files={},
        depths=tuple(sorted(set(options.depths))),
        comparable_depths=_comparable_depths(training, options.depths, config.num_hidden_layers),
    )


def _comparable_depths(
    training: Mapping[str, Any], depths: Sequence[int], full: int
) -> tuple[int, ...]:
    """The exits that an elastic recipe has aligned with full depth, and full depth; or none."""
    elastic = training.get("recipe", {}).get("elastic") or {}
    if elastic.get("align", "none") == "none":
        return ()
    aligned = sorted({*depths} & {*elastic["depths"]})
    return (*aligned, full) if aligned else ()


def _max_seq_length(encoder: SentenceTransformer) -> int:
    if encoder.max_seq_length is None:
        raise ExportError(
            "the checkpoint does not say how many tokens it reads. Build the encoder with"
            " max_seq_length."
        )
    return int(encoder.max_seq_length)


def _encode(
    encoder: SentenceTransformer, sentences: Sequence[str], depth: int | None = None
) -> NDArray[np.float32]:
    """Embeddings [n, dim] float32, L2-normalised, by torch; of the whole encoder or at a depth."""
    with stopped_at(encoder, depth) if depth else nullcontext():
        embeddings = encoder.encode(
            list(sentences), normalize_embeddings=True, convert_to_numpy=True
        )
    return cast(NDArray[np.float32], embeddings.astype(np.float32))
