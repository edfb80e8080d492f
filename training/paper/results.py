"""Result files: reading them, comparing their recipes, and collecting those of one objective."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.errors import ConfigError

Result = Mapping[str, Any]
Value = Callable[[Result], float | None]  # a number of a result; None where it has none


def read_result(file: Path) -> dict[str, Any]:
    """The content of a result file. Raises `ConfigError` for another kind of file."""
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if {"recipe", "corpus_sha256", "scores"} <= set(content):
            return content
    except (OSError, ValueError):
        pass
    raise ConfigError(f"{file} is no result of a run: delete it.")


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """The keys in which two recipes differ, as ``key = value against value``."""
    a, b = dict(_flat(first)), dict(_flat(second))
    differing = [key for key in {**a, **b} if a.get(key) != b.get(key)]
    return ", ".join(f"{key} = {a.get(key)} against {b.get(key)}" for key in differing)


def _flat(table: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{head}{key}.")
        else:
            yield head + key, value


@dataclass(frozen=True)
class Results:
    """The results of one backbone and objective, by configuration, ordered by seed."""

    objective: str
    runs: Mapping[str, Sequence[Result]]

    def values(self, name: str, of: Value) -> list[float]:
        """One value for each seed of a configuration that has it."""
        found = (of(result) for result in self.runs.get(name, ()))
        return [value for value in found if value is not None]


def read_results(folder: Path, objective: str) -> Results:
    """Every result of an objective. Raises `ConfigError` where two cannot be compared."""
    runs: dict[str, list[Result]] = {}
    first: tuple[Path, dict[str, Any]] | None = None
    for file in sorted((folder / objective).glob("*.seed*.json")):
        result = read_result(file)
        common = common_settings(result)
        if first is not None and common != first[1]:
            raise ConfigError(
                f"{first[0]} and {file} cannot be compared ({difference(first[1], common)}): "
                "keep them in different folders."
            )
        first = first or (file, common)
        runs.setdefault(result["configuration"], []).append(result)
    for of_one in runs.values():
        of_one.sort(key=lambda result: int(result["seed"]))
    return Results(objective, runs)


def common_settings(result: Result) -> dict[str, Any]:
    """What must be equal in all results of a table: everything but what the tables vary."""
    recipe = {key: dict(value) for key, value in result["recipe"].items() if type(value) is dict}
    recipe["backbone"].pop("pooling", None)
    recipe["training"].pop("selector_learning_rate", None)
    kept = {key: recipe[key] for key in ("backbone", "objective", "training")}
    return {**kept, "corpus": result["corpus_sha256"]}
