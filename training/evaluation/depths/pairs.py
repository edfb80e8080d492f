"""Scores embeddings of one depth against those of another: shallow queries, deep documents."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from s2sent.training.evaluation.depths.encoders import open_depths
from s2sent.training.evaluation.development import WITHOUT_OVERLAP, read_development_pairs
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.retrieval import read_retrieval, retrieval_scores
from s2sent.training.evaluation.sts import roles, spearman

Show = Callable[[str], None]
Rows = NDArray[np.float32]
Pairs = dict[tuple[int, int], float]  # a score by the depths of the two sides


def evaluate_depth_pairs(path: Path, data: Path, show: Show, retrieval: Path | None = None) -> None:
    """Score the artifact or checkpoint at ``path`` with every pair of depths; ``show`` the tables.

    On development data: STS-B dev without its overlap, first sentences at one depth and second ones
    at the other, and with ``retrieval`` R@1 and MRR@10 of queries and documents. Raises
    `ArtifactError`, and a `TrainingError` for an encoder without depths or unusable data.
    """
    encoders = open_depths(path).at
    depths = [*encoders]

    dev = read_development_pairs(data / "sts").without_overlap
    first, second = (
        {depth: encode(texts) for depth, encode in encoders.items()}
        for texts in (dev.first, dev.second)
    )
    found = score_pairs(
        first, second, lambda one, other: {WITHOUT_OVERLAP: spearman(one, other, dev.gold)}
    )
    if retrieval is not None:
        asked, held = (
            {depth: roles(encode)[side](texts) for depth, encode in encoders.items()}
            for side, texts in enumerate(read_retrieval(retrieval))
        )
        found |= score_pairs(asked, held, retrieval_scores)
    for name, scores in found.items():
        show(f"\n{name}; rows: depth of the source or query, columns: of the others\n")
        show(_table(scores, depths))


def score_pairs(
    first: Mapping[int, Rows],
    second: Mapping[int, Rows],
    score: Callable[[Rows, Rows], Mapping[str, float]],
) -> dict[str, Pairs]:
    """Each score of embeddings by depth [n, dim] for every pair of a depth of either side."""
    found: dict[str, Pairs] = {}
    for one, rows in first.items():
        for other, others in second.items():
            for name, value in score(rows, others).items():
                found.setdefault(name, {})[one, other] = value
    return found


def _table(scores: Pairs, depths: Sequence[int]) -> str:
    rows = [[str(one), *(f"{scores[one, other]:.2f}" for other in depths)] for one in depths]
    return markdown_table(["depth", *map(str, depths)], rows)
