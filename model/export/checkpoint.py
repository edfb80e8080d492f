"""Export of a checkpoint to an artifact: trace, fuse, round, compare with torch, seal.

    load_encoder -> PooledEncoder -> trace -> split -> fuse
        -> pack [-> int8 products] [-> int8 storage], or fp16
        -> join [-> early exits] -> parity with torch, at every depth -> sealed folder

The artifact appears at its target only if every step succeeds.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from s2sent.model.artifact.manifest import CONFIG, MODEL, WEIGHTS, Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import seal, staged
from s2sent.model.export.companions import CANARY_TEXT, write_canary, write_pooling
from s2sent.model.export.int8.rounding import round_weights
from s2sent.model.export.lengths import checked_texts, cut_at, max_seq_length
from s2sent.model.export.library_errors import step
from s2sent.model.export.options import ExportError, ExportOptions
from s2sent.model.export.parameters import write_parameters
from s2sent.model.export.parity import (
    SAME_AS_TORCH,
    ParityReport,
    check_parity,
    checked_prompt_name,
    parity_by_depth,
)
from s2sent.model.export.tracing import by_optimum
from s2sent.model.export.tracing.trace import backbone_config
from s2sent.model.export.written_graph import WrittenGraph, write_graph
from s2sent.model.network.encoder import (
    find_selector,
    find_template,
    get_pooling,
    load_encoder,
    pooling_modes,
)
from s2sent.model.network.loading.hub import local_folder
from s2sent.model.network.pooled import stopped_at
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import OnnxEncoder

_PACKAGES = ("torch", "transformers", "sentence-transformers", "onnxruntime")
TRAINING_RECORD = "training.json"  # what the trainer leaves in a checkpoint for the manifest


def export_checkpoint(
    checkpoint: str | Path,
    target: str | Path,
    options: ExportOptions = ExportOptions(),  # noqa: B008  # frozen
) -> Artifact:
    """Export the sentence-transformers checkpoint, a folder or a hub id, to ``target``.

    It may have a selector or none: `model.network.encoder.load_encoder` says what it may hold.
    Raises `model.network.encoder.CheckpointError`, `ExportError`, `model.export.graph.GraphError`,
    `model.export.parity.ParityError` or `model.artifact.errors.ArtifactError`, and then leaves
    ``target`` as it was.
    """
    checkpoint, target = local_folder(checkpoint), Path(target)
    encoder = load_encoder(checkpoint).to("cpu")
    cut_at(encoder, options.max_seq_length)
    encoder.tokenizer.padding_side = "right"  # as served: GPT-2 counts padding on the left
    if selector := find_selector(encoder):
        _refuse_batch_dependence(selector.config)
    sentences = checked_texts(encoder, options.sentences)
    unrounded, encoder = encoder, round_weights(encoder, options.precision)
    with staged(target, overwrite=options.overwrite) as folder:
        written = write_graph(encoder, folder / MODEL, options)
        if options.precision in SAME_AS_TORCH and not (folder / WEIGHTS).exists():
            write_parameters(encoder, folder)
        _write_companions(encoder, folder)
        manifest = _describe(encoder, checkpoint, options, written)

        with step("run", backbone_config(encoder)):
            served = OnnxEncoder(Artifact(folder, manifest))
            compare = partial(compare_with_torch, served, sentences, encoder, unrounded)
            parity = parity_by_depth(manifest.depths, compare)
        seal(folder, replace(manifest, parity=parity))
    return Artifact.open(target)


def _refuse_batch_dependence(config: SelectorConfig) -> None:
    if config.mask == "none" or config.weight_norm == "global":
        raise ExportError(
            f"a selector with mask={config.mask!r} and weight_norm={config.weight_norm!r} makes an"
            " embedding depend on its batch, and an artifact must not. Train with mask='valid' and"
            " weight_norm='softmax_blocks' instead."
        )


def _write_companions(encoder: SentenceTransformer, folder: Path) -> None:
    """Write tokenizer, backbone configuration, pooling and canary, as other servers name them."""
    encoder.tokenizer.save_pretrained(folder, legacy_format=False)
    config = backbone_config(encoder)
    config.to_json_file(folder / CONFIG, use_diff=False)
    pooled, width = _pooled(encoder), get_pooling(encoder).get_embedding_dimension()
    write_pooling(folder, width // len(pooled), pooled)
    write_canary(folder, encode(encoder, [CANARY_TEXT], prompt="")[0])


def compare_with_torch(
    served: OnnxEncoder,
    sentences: Sequence[str],
    exported: SentenceTransformer,
    unrounded: SentenceTransformer,
    depth: int | None = None,
) -> ParityReport:
    """`check_parity` of an artifact with the weights that it has and those of its checkpoint."""
    manifest, name = served.artifact.manifest, checked_prompt_name(served)
    given = sentences, depth, manifest.prompt(name)
    torch = encode(exported, *given)
    return check_parity(
        manifest.precision,
        sentences,
        onnx=partial(served.encode, batch_size=len(sentences), depth=depth, prompt_name=name),
        torch=torch,
        unrounded=torch if unrounded is exported else encode(unrounded, *given),
    )


def training_of(checkpoint: Path) -> dict[str, Any]:
    """What the trainer left in a checkpoint; nothing of one that it did not make."""
    record = checkpoint / TRAINING_RECORD
    if not record.is_file():
        return {}
    found: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return found


def _describe(
    encoder: SentenceTransformer,
    checkpoint: Path,
    options: ExportOptions,
    written: WrittenGraph,
) -> Manifest:
    """The manifest without the parity report and the files."""
    training = training_of(checkpoint)
    config, selector = backbone_config(encoder), find_selector(encoder)
    return Manifest(
        name=options.name,
        dim=int(encoder.get_embedding_dimension() or 0),
        max_seq_length=max_seq_length(encoder),
        pooling="+".join(_pooled(encoder)),
        normalize=isinstance(encoder[-1], Normalize),
        precision=options.precision,
        inputs=written.inputs,
        selector=asdict(selector.config) if selector else None,
        backbone={"architecture": config.model_type, "num_blocks": config.num_hidden_layers}
        | options.backbone,
        prompts=_prompts(encoder),
        training=training,
        scores=options.scores,
        parity={},
        fused=written.fused,
        packed=written.packed,
        versions=_versions(),
        files={},
        depths=tuple(sorted(set(options.depths))),
        template=find_template(encoder),
        default_prompt_name=encoder.default_prompt_name if _prompts(encoder) else None,
        comparable_depths=_comparable_depths(training, options.depths, config.num_hidden_layers),
        exact_without_vnni=options.precision == "int8",
    )


def _versions() -> dict[str, str]:
    optimum = ("optimum-onnx",) if by_optimum.is_installed() else ()
    return {name: version(name) for name in (*_PACKAGES, *optimum)}


def _comparable_depths(
    training: Mapping[str, Any], depths: Sequence[int], full: int
) -> tuple[int, ...]:
    """The exits that an elastic recipe has aligned with full depth, and full depth; or none."""
    elastic = training.get("recipe", {}).get("elastic") or {}
    if elastic.get("align", "none") == "none":
        return ()
    aligned = sorted({*depths} & {*elastic["depths"]})
    return (*aligned, full) if aligned else ()


def _prompts(encoder: SentenceTransformer) -> dict[str, str]:
    """The text of each prompt, also of those without one; none where no prompt has a text."""
    prompts = {name: text or "" for name, text in encoder.prompts.items()}
    return prompts if any(prompts.values()) else {}


def _pooled(encoder: SentenceTransformer) -> tuple[str, ...]:
    """How the embedding is pooled; the token that is read, as the template names it."""
    modes = pooling_modes(encoder)
    return (str(encoder[0].read),) if modes == ("token",) else modes


def encode(
    encoder: SentenceTransformer,
    sentences: Sequence[str],
    depth: int | None = None,
    prompt: str | None = None,
) -> NDArray[np.float32]:
    """Embeddings [n, dim] float32, L2-normalised, by torch; of the whole encoder or at a depth.

    ``prompt`` stands before every sentence; None is the encoder's default one.
    """
    with stopped_at(encoder, depth) if depth else nullcontext():
        embeddings = encoder.encode(
            list(sentences),
            prompt=prompt,
            batch_size=1,  # a long text would make the others as long
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
    return cast(NDArray[np.float32], embeddings.astype(np.float32))
