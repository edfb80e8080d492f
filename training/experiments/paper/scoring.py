"""What is stored of a trained checkpoint: its measurements and the selector's own diagnostics."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from s2sent.model.network.encoder import find_selector
from s2sent.training.encoder import new_encoder
from s2sent.training.evaluation.encoders import load_checkpoint, torch_encode
from s2sent.training.evaluation.geometry import (
    GEOMETRY_FILE,
    BlockWeights,
    block_weights,
    describe_groups,
)
from s2sent.training.evaluation.measure import measure
from s2sent.training.evaluation.sts import Encode, cosines, distinct, read_sentence_pairs, score
from s2sent.training.files.record import read_record
from s2sent.training.recipe.recipe import recipe_from

DRIFT_SENTENCES = 64
SHUFFLED_TASK = "STS-B"
SHUFFLE_SEED = 0


def score_checkpoint(checkpoint: Path, data: Path, *, transfer: bool) -> dict[str, Any]:
    """The measurements of a checkpoint for its result file.

    Beside those of `measure`: the numbers of parameters, the selector's weights on STS-B's
    sentences, ``drift``, and ``shuffled``: STS-B with the squeeze's tokens in random order, minus
    STS-B.
    """
    encoder = load_checkpoint(checkpoint)
    encode = torch_encode(encoder)
    measured = measure(str(checkpoint), encode, data, transfer=transfer)
    pairs = read_sentence_pairs(data / "sts" / GEOMETRY_FILE)
    sentences = distinct(pairs.first, pairs.second)
    found: dict[str, Any] = {
        "scores": measured.sts,
        "geometry": measured.geometry,
        "by_gold": describe_groups(measured.groups),
        "cosines": {group.name: np.round(group.cosines, 4).tolist() for group in measured.groups},
        "parameters": parameters(encoder),
        "drift": drift(encode, sentences[:DRIFT_SENTENCES]),
    }
    if (weights := block_weights(encoder, sentences)) is not None:
        found["weights"] = {
            "blocks": list(weights.blocks),
            "mean": weights.mean.mean(1).tolist(),
            "spread": weights.spread.tolist(),
            "moved": float(abs(weights.mean - 1 / len(weights.blocks)).mean()),
            "max_moved": moved_from_start(checkpoint, weights, sentences),
        }
    if (shuffled := shuffled_score(encoder, data / "sts")) is not None:
        found["shuffled"] = shuffled - measured.sts[SHUFFLED_TASK]
    if measured.transfer is not None:
        found["transfer"] = measured.transfer
    return found


def moved_from_start(checkpoint: Path, weights: BlockWeights, sentences: list[str]) -> float | None:
    """The largest change of a block's and feature's mean weight since the first step.

    None for a checkpoint without the record of its recipe.
    """
    record = read_record(checkpoint)
    if "recipe" not in record:
        return None
    recipe = recipe_from(record["recipe"], str(checkpoint))
    torch.manual_seed(recipe.seed)
    start = block_weights(new_encoder(recipe), sentences)
    return None if start is None else float(abs(weights.mean - start.mean).max())


def parameters(encoder: SentenceTransformer) -> dict[str, int]:
    """The numbers of parameters, biases included, of the backbone and of the selector."""
    parts = {"backbone": encoder[0], "selector": find_selector(encoder)}
    return {
        name: sum(p.numel() for p in part.parameters()) if part is not None else 0
        for name, part in parts.items()
    }


def drift(encode: Encode, sentences: Sequence[str]) -> float:
    """The largest 1 - cosine between a sentence embedded alone and with the others."""
    alone = np.concatenate([encode([sentence]) for sentence in sentences])
    return float((1 - cosines(alone, encode(sentences))).max())


def shuffled_score(encoder: SentenceTransformer, folder: Path) -> float | None:
    """`SHUFFLED_TASK` with the squeeze's tokens in random order; None where order has no effect."""
    selector = find_selector(encoder)
    squeeze = selector.frequency_selection if selector else None
    if squeeze is None or squeeze.config.num_frequencies == 1:
        return None
    with _shuffled(squeeze):
        return score(torch_encode(encoder), folder, [SHUFFLED_TASK])[SHUFFLED_TASK]


@contextmanager
def _shuffled(squeeze: Any) -> Iterator[None]:
    """Permute the valid tokens of each text in the squeeze's basis within the block."""
    in_order = squeeze.token_basis
    generator = torch.Generator().manual_seed(SHUFFLE_SEED)

    def token_basis(mask: torch.Tensor) -> torch.Tensor:
        basis: torch.Tensor = in_order(mask)  # [B, F, L]
        padding = 2 * (mask == 0)
        noise = torch.rand(mask.shape, generator=generator).to(mask.device)
        place = padding.argsort(dim=1, stable=True)  # valid tokens first, in order
        source = (noise + padding).argsort(dim=1)  # valid tokens first, in any order
        order = torch.empty_like(place).scatter(1, place, source)
        return basis.gather(2, order[:, None].expand_as(basis))

    squeeze.token_basis = token_basis
    try:
        yield
    finally:
        del squeeze.token_basis
