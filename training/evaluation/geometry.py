"""Geometry of embeddings: alignment, uniformity, cosines by gold score; and fusion weights.

Alignment and uniformity (Wang and Isola, arXiv 2005.10242) as SimCSE takes them: of embeddings of
length 1, pairs whose gold score is above 4 being the positives. Here the sentences are those of
STS-B test, each once. Cosines are grouped by gold score as in Fig. 8 of S2Sent (arXiv 2508.18164).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from s2sent.training.errors import DataError
from s2sent.training.evaluation.encoders import BATCH_SIZE
from s2sent.training.evaluation.sts import (
    TASKS,
    Encode,
    SentencePairs,
    cosines,
    distinct,
    read_sentence_pairs,
    require_directions,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

GEOMETRY_FILE = TASKS["STS-B"]
POSITIVE_ABOVE = 4  # gold score
BOUNDS = (0, 1, 2, 3, 4, 5)  # of the groups; a bound belongs to the group below it, 0 to the first
GRID = np.linspace(-1, 1, 801)  # cosines at which densities are given
MIN_BANDWIDTH = 0.005  # of a density, so that equal cosines have one too

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """The cosines of the pairs whose gold score is above ``low`` and at most ``high``."""

    low: int
    high: int
    cosines: Vector  # [n]

    @property
    def name(self) -> str:
        """The bounds of the group, such as "0-1"."""
        return f"{self.low}-{self.high}"

    def density(self) -> Vector:
        """A Gaussian kernel estimate at `GRID`, by Silverman's bandwidth; its integral is 1."""
        width = 1.06 * self.cosines.std() * len(self.cosines) ** -0.2
        distance = (GRID[:, None] - self.cosines) / max(width, MIN_BANDWIDTH)
        density = np.exp(-0.5 * distance**2).sum(1)
        scaled: Vector = density / (density.sum() * (GRID[1] - GRID[0]))
        return scaled


@dataclass(frozen=True)
class BlockWeights:
    """The fusion weights of a selector over many sentences; blocks are in order of depth.

    ``mean`` [N, D] is over sentences. ``spread`` [N] is the standard deviation over sentences,
    averaged over features: 0 for weights that do not depend on the input.
    """

    blocks: tuple[int, ...]
    mean: Vector
    spread: Vector


def geometry(encode: Encode, folder: Path) -> dict[str, float]:
    """Alignment, uniformity and their ratios, on STS-B test of ``folder``.

    ``alignment`` is the mean squared distance of positive pairs, ``uniformity`` the logarithm of
    the mean of exp(-2 squared distance) over all pairs of different sentences: lower is better for
    both. ``pos_over_random`` divides alignment by the mean squared distance of all pairs.
    """
    pairs = read_sentence_pairs(folder / GEOMETRY_FILE)
    if max(pairs.gold) <= POSITIVE_ABOVE:
        raise DataError(
            f"{folder / GEOMETRY_FILE} has no score above {POSITIVE_ABOVE}: fetch it again."
        )
    return geometry_of(encode, pairs)


def geometry_of(encode: Encode, pairs: SentencePairs) -> dict[str, float]:
    """As `geometry`, of other pairs, some of them with a gold score above `POSITIVE_ABOVE`."""
    positive = np.array(pairs.gold) > POSITIVE_ABOVE
    sentences = distinct(pairs.first, pairs.second)
    cosine = _cosines_of_all_pairs(encode(sentences))
    align = float((2 - 2 * _pair_cosines(encode, pairs)[positive]).mean())
    uniform = float(np.log(np.exp(4 * cosine - 4).mean()))
    return {
        "alignment": align,
        "uniformity": uniform,
        "pos_over_random": _ratio(align, float((2 - 2 * cosine).mean())),
        "align_over_abs_uniform": _ratio(align, abs(uniform)),
    }


def groups_by_gold(encode: Encode, folder: Path) -> list[Group]:
    """The cosines of STS-B test's pairs, by groups of gold score; raises `DataError` for an empty
    group."""
    pairs = read_sentence_pairs(folder / GEOMETRY_FILE)
    gold, cosine = np.array(pairs.gold), _pair_cosines(encode, pairs)
    group = np.clip(np.ceil(gold), 1, BOUNDS[-1])  # by its upper bound
    found = [Group(low, high, cosine[group == high]) for low, high in pairwise(BOUNDS)]
    if empty := [group.name for group in found if not len(group.cosines)]:
        raise DataError(
            f"{folder / GEOMETRY_FILE} has no pair with a gold score in {', '.join(empty)}: "
            "fetch it again."
        )
    return found


def describe_groups(groups: list[Group]) -> dict[str, Any]:
    """Each group's number of pairs, mean, standard deviation, 5th and 95th percentile; the spread,
    which is the standard deviation of the means; and the overlap of neighbouring groups, from 0
    (apart) to 1 (the same)."""
    means = [float(group.cosines.mean()) for group in groups]
    densities = {group.name: group.density() for group in groups}
    step = float(GRID[1] - GRID[0])
    return {
        "groups": {
            group.name: {
                "pairs": len(group.cosines),
                "mean": mean,
                "sd": float(group.cosines.std()),
                "p5": float(np.percentile(group.cosines, 5)),
                "p95": float(np.percentile(group.cosines, 95)),
            }
            for group, mean in zip(groups, means, strict=True)
        },
        "spread": float(np.std(means)),
        "overlap": {
            f"{a} and {b}": float(np.minimum(densities[a], densities[b]).sum()) * step
            for a, b in pairwise(densities)
        },
    }


def block_weights(encoder: "SentenceTransformer", texts: list[str]) -> BlockWeights | None:
    """The fusion weights of the encoder's selector on ``texts``; None for an encoder without one.

    They are those of full depth. Where every token has weights of its own, a sentence's are the
    mean over its tokens.
    """
    import torch

    from s2sent.model.network.encoder import find_selector

    selector = find_selector(encoder)
    if selector is None:
        return None
    full = int(encoder[0].get_submodule("auto_model").config.num_hidden_layers)  # type: ignore[union-attr,arg-type]
    total = squares = torch.zeros(())
    with torch.no_grad(), _weights_seen(selector) as seen:
        for start in range(0, len(texts), BATCH_SIZE):
            batch = texts[start : start + BATCH_SIZE]
            encoder.encode(batch, batch_size=BATCH_SIZE, show_progress_bar=False)
            weights = seen.pop().double()  # [N, B, D]
            total = total + weights.sum(1)
            squares = squares + (weights**2).sum(1)
    mean = total / len(texts)
    deviation = (squares / len(texts) - mean**2).clamp(min=0).sqrt()
    return BlockWeights(
        tuple(selector.block_numbers(full)),
        mean.cpu().numpy(),
        deviation.mean(1).cpu().numpy(),
    )


@contextmanager
def _weights_seen(selector: Any) -> Iterator[list[Any]]:
    """In the block each forward of the selector appends its weights [N, B, D]."""
    seen: list[Any] = []

    def look(_module: Any, inputs: tuple[dict[str, Any], ...]) -> None:
        features = inputs[0]
        mask = features["attention_mask"]
        blocks = selector.select_blocks(features["all_layer_embeddings"])
        read = features.get("read_positions")
        weights = selector.block_weights(blocks, mask, read)  # [N, B or 1, L or 1, D]
        if weights.shape[2] > 1:
            share = (mask / mask.sum(1, keepdim=True)).to(weights.dtype)
            weights = (weights * share[:, :, None]).sum(2, keepdim=True)
        seen.append(weights[:, :, 0].expand(-1, len(mask), -1))

    hook = selector.register_forward_pre_hook(look)
    try:
        yield seen
    finally:
        hook.remove()


def _ratio(part: float, whole: float) -> float:
    """NaN where ``whole`` is 0, as it is when all embeddings are the same."""
    return part / whole if whole else float("nan")


def _pair_cosines(encode: Encode, pairs: SentencePairs) -> Vector:
    return cosines(encode(pairs.first), encode(pairs.second))


def _cosines_of_all_pairs(embeddings: NDArray[np.float32]) -> Vector:
    """The cosine of every two different rows of [n, dim]: [n (n - 1) / 2]."""
    rows = embeddings.astype(np.float64)
    require_directions(rows)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    above: Vector = (rows @ rows.T)[np.triu_indices(len(rows), k=1)]
    return above
