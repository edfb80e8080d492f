"""Restores the checkpoint of an artifact, so that training can go on from it.

the artifact's configuration -> a new encoder -> the graph's values, from where parameters.json
    says that each parameter is -> compared with the artifact
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel

from s2sent.model.artifact.errors import UserError
from s2sent.model.artifact.manifest import MODEL, PARAMETERS, parse_object
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import staged
from s2sent.model.export.checkpoint import TRAINING_RECORD, encode
from s2sent.model.export.parameters import weights_of
from s2sent.model.export.parity import MAX_ABS_DIFF, SAME_AS_TORCH, parity_sentences
from s2sent.model.network.encoder import build_encoder, build_plain_encoder, load_encoder
from s2sent.model.network.loading.backbone_settings import read_config
from s2sent.model.network.loading.bare import MODULES_FILE
from s2sent.model.network.loading.checkpoint import CheckpointError
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.runtime.encoder import OnnxEncoder


class RestoreError(UserError):
    """The artifact's checkpoint cannot be restored; the message says why and what to do."""


def restore_checkpoint(artifact: Artifact, target: Path, *, overwrite: bool = False) -> float:
    """Save the sentence-transformers checkpoint of ``artifact`` to the folder ``target``.

    Its weights are those that the artifact computes with, in `weight-int8` the rounded ones; what
    the graph does not hold, such as BERT's pooler, is new. Returns the largest difference of a
    component between embeddings of both, at every depth. Raises `RestoreError`, or
    `model.artifact.errors.ArtifactError` where ``target`` exists and may not be replaced, and
    then leaves it as it was.
    """
    _require_restorable(artifact)
    with staged(target, overwrite=overwrite, marker=MODULES_FILE) as folder:
        encoder = _new_encoder(artifact)
        _take_weights(encoder, artifact)
        encoder.save(str(folder), create_model_card=False)
        if training := artifact.manifest.training:
            text = json.dumps(training, indent=2, ensure_ascii=False) + "\n"
            (folder / TRAINING_RECORD).write_text(text, encoding="utf-8")
        return _compare(load_encoder(folder), artifact)


def _require_restorable(artifact: Artifact) -> None:
    manifest = artifact.manifest
    reasons = {
        f"{manifest.precision}, whose weights are not those that were trained": (
            manifest.precision not in SAME_AS_TORCH
        ),
        "in two files": manifest.in_two_files,
        "of twins": bool(manifest.towers),
        "of several poolings side by side": "+" in manifest.pooling,
        "of an encoder with a template": manifest.template is not None,
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise RestoreError(
            f"{artifact.path} is {reason}: a checkpoint can be restored from an fp32 or weight-int8"
            " artifact in one file, of one encoder with one pooling and without a template."
        )
    if PARAMETERS not in manifest.files:
        raise RestoreError(
            f"{artifact.path} has no {PARAMETERS}, which says where its graph holds each parameter:"
            " export the checkpoint again with s2sent-train export, or train from it."
        )


def _new_encoder(artifact: Artifact) -> SentenceTransformer:
    """A new encoder that is built as the artifact's was."""
    manifest = artifact.manifest
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in {*manifest.files} - {MODEL}:
            if "/" not in name:  # the tokenizer's files and the configuration
                (folder / name).write_bytes(artifact.read(name))
        try:
            config = read_config(folder)
        except CheckpointError as error:
            said = str(error).replace(str(folder), str(artifact.path))
            raise RestoreError(said) from error
        AutoModel.from_config(config, trust_remote_code=False).save_pretrained(folder)  # type: ignore[no-untyped-call]  # transformers is partly typed
        limits: dict[str, Any] = {
            "max_seq_length": manifest.max_seq_length,
            "normalize": manifest.normalize,
        }
        if manifest.selector is None:
            encoder = build_plain_encoder(folder, pooling=manifest.pooling, **limits)
        else:
            options = {**manifest.selector, "exits": tuple(manifest.selector.get("exits", ()))}
            encoder = build_encoder(folder, SelectorConfig(**options), **limits)
    encoder.prompts = {**manifest.prompts}
    if not manifest.pools_prompts:
        encoder.set_pooling_include_prompt(False)
    encoder.default_prompt_name = manifest.default_prompt_name
    return encoder


def _take_weights(encoder: SentenceTransformer, artifact: Artifact) -> None:
    """Set each parameter that the artifact's graph holds to its values there, in place."""
    weights = weights_of(onnx.load_from_string(artifact.read(MODEL)))
    parameters = dict(encoder.named_parameters())
    for name, place in parse_object(artifact.read(PARAMETERS), PARAMETERS).items():
        try:
            parameter, values, start = parameters[name], weights[place["tensor"]], place["start"]
            line = (values.T if place["transposed"] else values).ravel()
            taken = line[start : start + parameter.numel()].reshape(parameter.shape)
        except (KeyError, TypeError, ValueError):
            raise RestoreError(
                f"{artifact.path}: what {PARAMETERS} says of {name} does not fit its graph and its"
                " configuration: train from the checkpoint that it was exported from."
            ) from None
        parameter.data = torch.tensor(taken)


def _compare(encoder: SentenceTransformer, artifact: Artifact) -> float:
    """The largest difference between embeddings of both; raises `RestoreError` for too large."""
    served, sentences = OnnxEncoder(artifact), parity_sentences()
    depths = [*artifact.manifest.depths, None]
    differences = [
        np.abs(served.encode(sentences, depth=depth) - encode(encoder, sentences, depth)).max()
        for depth in depths
    ]
    largest = float(np.max(differences))
    if not largest <= MAX_ABS_DIFF:  # NaN, too
        raise RestoreError(
            f"{artifact.path} gives other embeddings than the checkpoint restored from it: they"
            f" differ by {largest:.1e}, and the bound is {MAX_ABS_DIFF:.0e}. Train from the"
            " checkpoint that it was exported from."
        )
    return largest
