"""Results: reading them, comparing their recipes, and collecting those of one objective."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s2sent.training.errors import ConfigError
from s2sent.training.files.jsonl import read_lines

Result = Mapping[str, Any]
Value = Callable[[Result], float | None]  # a number of a result; None where it has none


def results_file(folder: Path, objective: str) -> Path:
    """The file of a backbone's results with an objective, one run a line."""
    return folder / f"{objective}.jsonl"


def read_result_lines(file: Path) -> list[dict[str, Any]]:
    """The results in a file; of a configuration and seed that stand in it twice the last one.

    Raises `ConfigError` naming a line that is no result.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for number, line in enumerate(read_lines(file), start=1):
        if not {"configuration", "seed", "recipe", "corpus_sha256", "scores"} <= set(line):
            raise ConfigError(f"{file}, line {number} is no result of a run: delete the line.")
        found[line["configuration"], line["seed"]] = line
    return list(found.values())


def find_result(file: Path, configuration: str, seed: int) -> dict[str, Any] | None:
    """The result of a configuration and a seed; None where the file has none."""
    for result in read_result_lines(file):
        if (result["configuration"], result["seed"]) == (configuration, seed):
            return result
    return None


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
        return list(self.by_seed(name, of).values())

    def by_seed(self, name: str, of: Value) -> dict[int, float]:
        """The values by seed."""
        found = {int(result["seed"]): of(result) for result in self.runs.get(name, ())}
        return {seed: value for seed, value in found.items() if value is not None}


def read_results(folder: Path, objective: str) -> Results:
    """Every result of an objective. Raises `ConfigError` where two cannot be compared."""
    runs: dict[str, list[Result]] = {}
    first: dict[str, Any] | None = None
    file = results_file(folder, objective)
    for result in read_result_lines(file):
        common = common_settings(result)
        if first is not None and common != common_settings(first):
            raise ConfigError(
                f"{_name(first)} and {_name(result)} in {file} cannot be compared "
                f"({difference(common_settings(first), common)}): keep them in different folders."
            )
        first = first or result
        runs.setdefault(result["configuration"], []).append(result)
    for of_one in runs.values():
        of_one.sort(key=lambda result: int(result["seed"]))
    return Results(objective, runs)


def _name(result: Result) -> str:
    return f"{result['configuration']} seed {result['seed']}"


def common_settings(result: Result) -> dict[str, Any]:
    """What must be equal in all results of a table: everything but what the tables vary."""
    recipe = {key: dict(value) for key, value in result["recipe"].items() if type(value) is dict}
    recipe["backbone"].pop("pooling", None)
    recipe["training"].pop("selector_learning_rate", None)
    kept = {key: recipe[key] for key in ("backbone", "objective", "training")}
    return {**kept, "corpus": result["corpus_sha256"]}
