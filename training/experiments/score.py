"""What experiments score of a trained checkpoint."""

from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.depths.by_depth import score_grid
from s2sent.training.evaluation.depths.encoders import checkpoint_depths
from s2sent.training.evaluation.development import WITHOUT_OVERLAP, score_development
from s2sent.training.evaluation.retrieval import PACKAGES, RECALL, score_retrieval
from s2sent.training.evaluation.sts import (
    Encode,
    SentencePairs,
    average,
    read_tasks,
    score,
    spearman,
    thinned,
    with_average,
)


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
    return tests


def correlation(encode: Encode, pairs: SentencePairs) -> float:
    """Spearman x 100 of the cosines of pairs with their gold scores."""
    return spearman(encode(pairs.first), encode(pairs.second), pairs.gold)


def scores_on(encode: Encode, tests: dict[str, SentencePairs]) -> dict[str, float]:
    """Spearman x 100 of each test and their mean."""
    found = with_average({task: correlation(encode, pairs) for task, pairs in tests.items()})
    return {name: round(value, 6) for name, value in found.items()}


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
