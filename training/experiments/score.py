"""Scores on the seven tests, or on a part of each."""

from pathlib import Path

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.sts import (
    Encode,
    SentencePairs,
    read_tasks,
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
