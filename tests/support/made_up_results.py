"""Result files with made-up scores, for tests of tables and claims."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from s2sent.training.evaluation.results.statistics import Line
from s2sent.training.evaluation.sts import TASKS
from s2sent.training.experiments.arms.configurations import CONFIGURATIONS
from s2sent.training.experiments.arms.paper_tables import read_results
from s2sent.training.files.jsonl import append_line

NOTHING: dict[str, float | None] = {}


def made_up(name: str, seed: int, average: float) -> dict[str, Any]:
    recipe = CONFIGURATIONS[name]
    tasks = {task: average + shift for shift, task in enumerate(TASKS, start=-3)}
    cosines = {f"{low}-{low + 1}": [0.1 * low, 0.1 * low + 0.2] for low in range(5)}
    return {
        "configuration": name,
        "objective": "simcse",
        "seed": seed,
        "recipe": recipe.recipe(
            objective="simcse", backbone="pypi:some", budget="short", seed=seed
        ).as_table(),
        "corpus_sha256": "a" * 64,
        "dev": average + 5,
        "step": 50,
        "curve": [[0, 80.0]],
        "seconds": 60.0,
        "mean_block_weights": None if name == "last1" else [0.2, 0.3, 0.5],
        "scores": {**tasks, "average": average},
        "by_gold": {"groups": {name: {"mean": 0.5} for name in cosines}, "spread": 0.2},
        "cosines": cosines,
        "geometry": {"alignment": 0.2, "uniformity": -2.0, "pos_over_random": 0.1},
        "parameters": {"backbone": 1000, "selector": 0 if name == "last1" else 2},
        "versions": {"torch": "2"},
    }


def write_made_up(folder: Path, averages: Mapping[str, Sequence[float]]) -> dict[str, list[Line]]:
    for name, values in averages.items():
        for seed, value in enumerate(values, start=1):
            append_line(folder / "simcse.jsonl", made_up(name, seed, value))
    return read_results(folder, "simcse")


BASE, SELECTED = [78.0, 78.4, 78.2], [79.0, 79.5, 79.1]


def around(mean: float) -> list[float]:
    """The scores of five seeds."""
    return [mean + 0.1 * (seed - 2) for seed in range(5)]


def by_seed(scores: Mapping[str, Sequence[float]], step: int = 50) -> dict[str, list[Line]]:
    """Runs by seed, each with noise of its own: no two rows are a constant apart."""
    return {
        name: [
            {
                "seed": seed,
                "step": step,
                "scores": {"average": value + Random(f"{name} {seed}").uniform(-0.1, 0.1)},
            }
            for seed, value in enumerate(values)
        ]
        for name, values in scores.items()
    }


ORDERED = {
    "last1": around(76.0),
    "last3-avg": around(76.2),
    "last3-1d": around(77.0),
    "last3-2d": around(78.0),
}
