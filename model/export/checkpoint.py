"""Checkpoint to artifact: trace with optimum, fuse, round, prove equal to torch, seal.

    load_encoder -> PooledEncoder -> optimum trace -> split -> fuse
        -> pack [-> int8 products] [-> int8 storage], or fp16
        -> join [-> early exits] -> parity with torch, at every depth -> sealed folder

Nothing is put in place unless every step succeeded.
"""

import copy
import json
import warnings
from collections.abc import Sequence
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
from optimum.exporters.onnx import export as trace
from optimum.exporters.onnx.config import TextEncoderOnnxConfig
from optimum.utils import NormalizedTextConfig
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from torch.jit import TracerWarning  # type: ignore[attr-defined]  # torch does not list it

from model.artifact.manifest import CANARY, CONFIG, MODEL, Manifest
from model.artifact.reader import Artifact
from model.artifact.writer import seal, staged
from model.export import graph
from model.export.early_exit import add_depth_input
from model.export.int8 import MEASURED_AT_ONCE, measure_tokens, multiply_as_int8
from model.export.packing import pack
from model.export.parity import ParityReport, check_parity, parity_sentences
from model.network.encoder import (
    PooledEncoder,
    find_selector,
    get_pooling,
    load_encoder,
    stopped_at,
)
from model.network.selector import SelectorConfig
from model.runtime.encoder import POOLED_OUTPUT, OnnxEncoder

Precision = Literal["fp32", "fp16", "weight-int8", "int8"]
STORED_AS_INT8: frozenset[Precision] = frozenset(("weight-int8", "int8"))
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("sentence_embedding", POOLED_OUTPUT)
CANARY_TEXT = "A canary sings while the air is good."
_RECORDED_VERSIONS = (
    "torch",
    "transformers",
    "sentence-transformers",
    "optimum-onnx",
    "onnxruntime",
)
TRAINING_RECORD = "training.json"  # what the trainer leaves in a checkpoint for the manifest


class ExportError(Exception):
    """The checkpoint cannot be exported as asked; the message says why and what to change."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How to export, and what the manifest says beyond what the checkpoint knows.

    ``backbone`` names the backbone and its licence; ``prompts`` maps prompt names to texts put
    before an input. ``sentences`` are what parity is checked on, the built-in ones when empty.
    ``depths`` are the blocks after which the encoder can also stop, besides the last one.
    With ``standard_operators`` nothing is fused: the graph has operators of the ONNX standard only,
    which TensorRT and other runtimes ask for.
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
    `model.export.parity.ParityError` or `model.artifact.manifest.ArtifactError`; in every case
    ``target`` is as it
    was before.
    """
    encoder = load_encoder(checkpoint).to("cpu")
    if selector := find_selector(encoder):
        _refuse_batch_dependence(selector.config)
    sentences = list(options.sentences or parity_sentences())
    sentences.append(" ".join(parity_sentences()))  # longer than any encoder reads
    unrounded = encoder
    if options.precision in STORED_AS_INT8:
        # The products of int8 round their matrices themselves, which leaves the tables.
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

        parity = asdict(compare())
        if manifest.depths:
            parity["depths"] = {str(depth): asdict(compare(depth)) for depth in manifest.depths}
        seal(folder, replace(manifest, parity=parity))
    return Artifact.open(target)


class _PooledEncoderConfig(TextEncoderOnnxConfig):  # type: ignore[misc]  # optimum is untyped
    """Names and dynamic axes of the traced graph, in optimum's form."""

    NORMALIZED_CONFIG_CLASS = NormalizedTextConfig

    def __init__(self, config: Any, inputs: Sequence[str], blocks: Sequence[str]) -> None:
        super().__init__(config)
        self._names = inputs
        self._blocks = blocks

    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        return {name: {0: "batch", 1: "length"} for name in self._names}

    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        vectors = {name: {0: "batch"} for name in OUTPUTS}
        return vectors | {name: {0: "batch", 1: "length"} for name in self._blocks}


def _refuse_batch_dependence(config: SelectorConfig) -> None:
    if config.mask == "none" or config.weight_norm == "global":
        raise ExportError(
            f"a selector with mask={config.mask!r} and weight_norm={config.weight_norm!r} makes an"
            " embedding depend on its batch, and an artifact must not. Train with mask='valid' and"
            " weight_norm='softmax_blocks' instead."
        )


class _Written(NamedTuple):
    """What the manifest says of the graph: its inputs, its fused operators, and `pack`'s answer."""

    inputs: tuple[str, ...]
    fused: dict[str, int]
    packed: bool


def _write_graph(encoder: SentenceTransformer, path: Path, options: ExportOptions) -> _Written:
    """Trace, fuse and store the graph at ``path``."""
    network: Any = PooledEncoder(copy.deepcopy(encoder), options.depths).eval()
    network.config = config = _backbone_config(encoder)  # the tracer asks for it
    inputs = tuple(name for name in INPUTS if name in encoder.tokenizer.model_input_names)
    exits = {depth: [*map(_block, numbers)] for depth, numbers in network.exits.items()}
    blocks = [*map(_block, network.blocks)]
    pooled = exits[max(exits)]
    path.parent.mkdir(parents=True)
    with warnings.catch_warnings():
        # What the trace holds constant is part of the mask's arithmetic; parity proves the rest.
        warnings.simplefilter("ignore", TracerWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # optimum traces with TorchScript
        trace(network, _PooledEncoderConfig(config, inputs, blocks), path, opset=graph.OPSET)
    also = [block for block in blocks if block not in pooled]
    front, pooling = graph.split(onnx.load(path), inputs, pooled, OUTPUTS, also=also)
    heads, width = int(config.num_attention_heads), int(config.hidden_size)
    fused: dict[str, int] = {}
    if not options.standard_operators:
        front, fused = graph.fuse(
            front,
            num_heads=heads,
            width=width,
            for_gpu=options.precision == "fp16",
            # One operator for them would need its tables in float32.
            embeddings=options.precision not in STORED_AS_INT8,
        )
        if not options.allow_unfused_attention:
            graph.require_fused_attention(fused, int(config.num_hidden_layers))
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
    graph.save(add_depth_input(whole, exits) if options.depths else whole, str(path))
    return _Written(inputs, fused, packed)


def _require_packed(packed: bool) -> None:
    if not packed:
        raise ExportError(
            "int8 rounds each token by itself, so it needs packed tokens, which this encoder, or a"
            " graph of standard operators, does not have. Choose weight-int8."
        )


def _block(number: int) -> str:
    return f"block_{number}"


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
    """A copy whose backbone's matrices lie on the int8 grid of their output channels or rows.

    With ``tables_only`` these are the tables of embeddings.
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
    """Tokenizer, backbone configuration and pooling, under the names other servers look for."""
    encoder.tokenizer.save_pretrained(folder, legacy_format=False)
    _backbone_config(encoder).to_json_file(folder / CONFIG, use_diff=False)
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
    """The manifest, but for the parity report and the files."""
    record = checkpoint / TRAINING_RECORD
    training = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    config, pooling = _backbone_config(encoder), get_pooling(encoder)
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
        versions={name: version(name) for name in _RECORDED_VERSIONS},
        files={},
        depths=tuple(sorted(set(options.depths))),
    )


def _backbone_config(encoder: SentenceTransformer) -> Any:
    backbone: Any = encoder[0]
    return backbone.auto_model.config


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
