"""What experiments measure of a trained checkpoint beside the scores of tasks."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device

from s2sent.model.network.encoder import find_selector
from s2sent.model.network.twin_encoder import TwinEncoder
from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.depths.by_depth import score_grid
from s2sent.training.evaluation.depths.encoders import checkpoint_depths
from s2sent.training.evaluation.development import (
    WITHOUT_OVERLAP,
    read_development_pairs,
    score_development,
)
from s2sent.training.evaluation.encoders import BATCH_SIZE, torch_encode
from s2sent.training.evaluation.geometry import (
    POSITIVE_ABOVE,
    BlockWeights,
    block_weights,
    geometry_of,
)
from s2sent.training.evaluation.retrieval import PACKAGES, RECALL, score_retrieval
from s2sent.training.evaluation.sts import (
    Encode,
    Remembered,
    SentencePairs,
    average,
    cosines,
    distinct,
    read_tasks,
    score,
    spearman,
    thinned,
    with_average,
)
from s2sent.training.fit.encoder import new_encoder
from s2sent.training.recipe.recipe import Recipe

VERSIONS = ("torch", "transformers", "sentence-transformers", "numpy", "scipy", "scikit-learn")
WEIGHED_TEXTS = 1000  # development texts on which a decoder's fusion weights are looked at
GEOMETRY_TASK = "STS-B"


def versions() -> dict[str, str]:
    """The versions of the libraries that decide what a run gives."""
    return {name: version(name) for name in VERSIONS}


def initial_encoder(recipe: Recipe) -> SentenceTransformer:
    """The encoder that a recipe starts from, with the random weights that training begins with."""
    torch.manual_seed(recipe.seed)
    return new_encoder(recipe)


def development_texts(data: Path) -> list[str]:
    """The sentences of STS-B dev without those of STS12 to 16, each once."""
    pairs = read_development_pairs(data / "sts").without_overlap
    return distinct(pairs.first, pairs.second)


def read_tests(data: Path, pairs_per_task: int) -> dict[str, SentencePairs]:
    """The seven tests, ``pairs_per_task`` pairs of each at equal steps; 0 takes all.

    Raises `ConfigError` where these are too few for a score.
    """
    tests = {
        task: thinned(pairs, pairs_per_task) for task, pairs in read_tasks(data / "sts").items()
    }
    for task, pairs in tests.items():
        if len({*pairs.gold}) < 2:
            raise ConfigError(
                f"With --test-pairs {pairs_per_task} {task} has the one gold score"
                f" {pairs.gold[0]:g}, with which nothing correlates: take more, or 0 for all."
            )
    if max(tests[GEOMETRY_TASK].gold) <= POSITIVE_ABOVE:
        raise ConfigError(
            f"With --test-pairs {pairs_per_task} {GEOMETRY_TASK} has no gold score above"
            f" {POSITIVE_ABOVE}, which alignment needs: take more, or 0 for all."
        )
    return tests


def scores_on(encode: Encode, tests: dict[str, SentencePairs]) -> dict[str, float]:
    """Spearman x 100 of each test and their mean; alignment, uniformity and their ratios."""
    by_task = {
        task: spearman(encode(pairs.first), encode(pairs.second), pairs.gold)
        for task, pairs in tests.items()
    }
    found = with_average(by_task) | geometry_of(encode, tests[GEOMETRY_TASK])
    return {name: round(value, 6) for name, value in found.items()}


@dataclass(frozen=True)
class FusionWeights:
    """The fusion weights of the kept step, over texts, and their change since step 0."""

    weights: BlockWeights
    change: float | None  # the largest of a block's and feature's mean weight

    @property
    def by_block(self) -> list[float]:
        """The mean weight of each block over texts and features, the shallowest first."""
        return [float(mean) for mean in self.weights.mean.mean(1)]


def fusion_weights(
    encoder: SentenceTransformer,
    start: SentenceTransformer | None,
    texts: list[str],
    depth: int | None = None,
) -> FusionWeights | None:
    """The fusion weights at a depth, by default full depth; None for an encoder without selector.

    Without ``start`` their change is not known.
    """
    weights = block_weights(encoder, texts, depth)
    before = None if weights is None or start is None else block_weights(start, texts, depth)
    if weights is None:
        return None
    return FusionWeights(
        weights, None if before is None else float(np.abs(weights.mean - before.mean).max())
    )


def score_depths(encoder: SentenceTransformer, checkpoint: Path, data: Path) -> dict[str, Any]:
    """Scores by depth of a checkpoint with exits, which ``encoder`` is.

    Spearman x 100 also by dimension: "tests", the mean of the STS tasks of ``data``, and "dev"; and
    R@1 x 100 as "retrieval", where packages are there. Raises `DataError` for a missing file.
    """
    by_depth = checkpoint_depths(encoder, checkpoint)

    def scores(encode: Encode) -> dict[str, float]:
        dev = score_development(encode, data / "sts")[WITHOUT_OVERLAP]
        return {"tests": average(score(encode, data / "sts")), "dev": dev}

    found: dict[str, Any] = {
        part: {str(depth): {str(size): row[size] for size in row} for depth, row in grid.items()}
        for part, grid in score_grid(by_depth, scores).items()
    }
    if (packages := data / PACKAGES).is_file():
        found["retrieval"] = {
            str(depth): score_retrieval(encode, packages)[RECALL]
            for depth, encode in by_depth.at.items()
        }
    return found


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


def score_towers(
    encoder: SentenceTransformer, start: SentenceTransformer, data: Path
) -> dict[str, Any]:
    """Scores of an encoder or of twins on STS-B dev, and their change since ``start``.

    ``moved`` is the mean of 1 - cosine between a text's embeddings before and after.
    ``first_token_norm`` is the mean over towers. ``max_weight_moved`` is the largest change of a
    fusion weight in a tower; None without selectors.
    """
    texts, encode = development_texts(data), Remembered(torch_encode(encoder))
    pairs = zip(_towers(encoder), _towers(start), strict=True)
    weights = [fusion_weights(after, before, texts) for after, before in pairs]
    return {
        "development": score_development(encode, data / "sts"),
        "geometry": geometry_of(encode, read_development_pairs(data / "sts").all),
        "first_token_norm": float(
            np.mean([first_token_norm(tower, texts) for tower in _towers(encoder)])
        ),
        "moved": float((1 - cosines(encode(texts), torch_encode(start)(texts))).mean()),
        "max_weight_moved": max((of.change for of in weights if of and of.change), default=None),
    }


def _towers(encoder: SentenceTransformer) -> tuple[SentenceTransformer, ...]:
    twins = encoder[0]
    return twins.towers if isinstance(twins, TwinEncoder) else (encoder,)


def parameters(encoder: SentenceTransformer) -> dict[str, int]:
    """The numbers of parameters, biases included, of the backbone and of the selector."""
    parts = {"backbone": encoder[0], "selector": find_selector(encoder)}
    return {
        name: sum(p.numel() for p in part.parameters()) if part is not None else 0
        for name, part in parts.items()
    }
