"""Averages the weights of checkpoints that were trained from the same start with several seeds.

The mean of such weights scores as well as a single run or better, with less variance between seeds
(model soups, arXiv 2203.05482).
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from model.network.checkpoint import CheckpointError
from model.network.encoder import find_selector
from training.errors import ConfigError, EncoderError
from training.evaluation.encoders import load_checkpoint, torch_encode
from training.evaluation.sts import DEV_FILE, read_sentence_pairs, spearman
from training.record import read_record, write_record

log = logging.getLogger(__name__)


def average_checkpoints(folders: Sequence[Path], output: Path, data: Path) -> float:
    """Save the mean of the checkpoints in ``folders`` to ``output``; returns its STS-B dev score.

    The record has the parts' records, and the score. Raises `ConfigError` when ``output`` exists
    or there are not two checkpoints, and `EncoderError` for a folder that is not a checkpoint or
    differs from the first in more than its weights.
    """
    if output.exists():
        raise ConfigError(f"{output} exists already: name a new folder, or delete it first.")
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
    encode, dev = torch_encode(encoder), read_sentence_pairs(data / "sts" / DEV_FILE)
    score = spearman(encode(dev.first), encode(dev.second), dev.gold)
    encoder.save(str(output), create_model_card=False)
    write_record(output, _describe([read_record(folder) for folder in folders], score))
    log.info("saved %s: the average of %d, dev %.2f", output, len(folders), score)
    return score


def _describe(records: Sequence[dict[str, Any]], score: float) -> dict[str, Any]:
    """The record of the average: the shared fields, its score, and the record of each part."""
    shared = {key: records[0].get(key) for key in ("backbone", "corpus")}
    dev = {"task": "STS-B dev, Spearman x 100", "score": round(score, 4)}
    return {**shared, "dev": dev, "average_of": list(records)}


def _load(folder: Path) -> SentenceTransformer:
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
