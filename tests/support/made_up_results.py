"""Result files with made-up scores, for tests of tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from s2sent.training.evaluation.results.statistics import Line
from s2sent.training.evaluation.sts import TASKS
from s2sent.training.experiments.arms.configurations import recipe_of
from s2sent.training.experiments.arms.paper import read_results
from s2sent.training.experiments.engine import Series
from s2sent.training.files.jsonl import append_line


def made_up(name: str, seed: int, average: float) -> dict[str, Any]:
    series = Series(Path("data"), Path("out"), "pypi:some")
    recipe = recipe_of(name, series, seed, objective="simcse")
    tasks = {task: average + shift for shift, task in enumerate(TASKS, start=-3)}
    return {
        "configuration": name,
        "objective": "simcse",
        "seed": seed,
        "recipe": recipe.as_table(),
        "corpus_sha256": "a" * 64,
        "step": 50,
        "scores": {**tasks, "average": average},
        "versions": {"torch": "2"},
    }


def write_made_up(folder: Path, averages: Mapping[str, Sequence[float]]) -> dict[str, list[Line]]:
    for name, values in averages.items():
        for seed, value in enumerate(values, start=1):
            append_line(folder / "simcse.jsonl", made_up(name, seed, value))
    return read_results(folder, "simcse")


BASE, SELECTED = [78.0, 78.4, 78.2], [79.0, 79.5, 79.1]
