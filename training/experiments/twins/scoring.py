"""What is measured of an encoder of the twin experiment: scores, geometry, and its movement."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device

from s2sent.model.network.twins import TwinEncoder
from s2sent.training.evaluation.development import read_development_pairs, score_development
from s2sent.training.evaluation.encoders import BATCH_SIZE, torch_encode
from s2sent.training.evaluation.geometry import geometry_of, weight_movement
from s2sent.training.evaluation.sts import Remembered, cosines, distinct, score, with_average


def score_on_development(
    encoder: SentenceTransformer, start: SentenceTransformer, data: Path
) -> dict[str, Any]:
    """Development scores, geometry and diagnostics of an encoder that began as ``start``.

    Everything is of STS-B dev, so no test is opened.
    ``moved`` is the mean of 1 - cosine between a text's embeddings before and after.
    ``first_token_norm`` is that of `first_token_norm`, the mean over towers. ``max_weight_moved``
    is the largest change of a block's mean fusion weight in a tower; None without selectors.
    """
    pairs = read_development_pairs(data / "sts")
    texts = distinct(pairs.without_overlap.first, pairs.without_overlap.second)
    encode = Remembered(torch_encode(encoder))
    norms = [first_token_norm(tower, texts) for tower in _towers(encoder)]
    return {
        "development": score_development(encode, data / "sts"),
        "geometry": geometry_of(encode, pairs.all),
        "first_token_norm": float(np.mean(norms)),
        "moved": float((1 - cosines(encode(texts), torch_encode(start)(texts))).mean()),
        "max_weight_moved": _weight_movement(encoder, start, texts),
    }


def score_on_tests(encoder: SentenceTransformer, data: Path) -> dict[str, Any]:
    """Spearman x 100 on the seven STS tests, and their average."""
    return {"scores": with_average(score(torch_encode(encoder), data / "sts"))}


def first_token_norm(encoder: SentenceTransformer, texts: list[str]) -> float:
    """The norm of a text's first token over the mean norm of its others, the mean over texts.

    The norms are of the token states that are pooled. JTCSE (arXiv 2505.02366) takes such a ratio,
    E_CLS, as a sign of attention that sinks into the first token; its exact form is not given, so
    compare only within one table.
    """
    ratios = []
    for start in range(0, len(texts), BATCH_SIZE):
        inputs = encoder.preprocess([*texts[start : start + BATCH_SIZE]])
        batch = batch_to_device(inputs, encoder.device)
        with torch.no_grad():
            norms = encoder(batch)["token_embeddings"].norm(dim=-1)  # [B, L]
        mask = batch["attention_mask"]
        others = (norms * mask)[:, 1:].sum(1) / mask[:, 1:].sum(1)
        ratios.append(norms[:, 0] / others)
    return float(torch.cat(ratios).mean())


def _towers(encoder: SentenceTransformer) -> tuple[SentenceTransformer, ...]:
    twins = encoder[0]
    return twins.towers if isinstance(twins, TwinEncoder) else (encoder,)


def _weight_movement(
    encoder: SentenceTransformer, start: SentenceTransformer, texts: list[str]
) -> float | None:
    towers = zip(_towers(encoder), _towers(start), strict=True)
    moved = [weight_movement(after, before, texts) for after, before in towers]
    return max((each for each in moved if each is not None), default=None)
