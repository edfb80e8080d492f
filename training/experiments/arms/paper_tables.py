"""The Markdown tables of a backbone's results, built from the result files alone.

A row without results shows as "not run", and so does one of a single seed beside rows of several.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation import transfer
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.statistics import Line, Value, compare
from s2sent.training.evaluation.sts import AVERAGE, TASKS
from s2sent.training.experiments.arms.configurations import PRESETS
from s2sent.training.experiments.arms.paper_experiments import Experiment
from s2sent.training.experiments.tables import (
    NOT_RUN,
    ByArm,
    arms_of,
    comparisons_table,
    get,
    spread,
    write_page,
)
from s2sent.training.files.jsonl import read_lines

TABLES_FILE = "tables.md"
PREFACE = (
    "Scores are Spearman x 100, of transfer tasks accuracy x 100, as mean ± standard deviation over"
    " n seeds. p is the t-test by seeds with Holm's correction over a table. "
    "The paper's numbers are of bert-base-uncased and roberta-base after one pass over a million "
    "sentences of Wikipedia. Where the backbone, the corpus or a setting below is another, compare "
    "differences within a column, never a number of ours with one of theirs."
)


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


def read_results(folder: Path, objective: str) -> dict[str, list[Line]]:
    """The runs of an objective by configuration. Raises `ConfigError` for what does not compare."""
    file = folder / f"{objective}.jsonl"
    lines = read_result_lines(file)
    for line in lines:
        if differing := difference(common_settings(lines[0]), common_settings(line)):
            first, other = (f"{of['configuration']} seed {of['seed']}" for of in (lines[0], line))
            raise ConfigError(
                f"{first} and {other} in {file} cannot be compared ({differing}): keep them in "
                "different folders."
            )
    return arms_of(lines, dict.fromkeys(line["configuration"] for line in lines), "configuration")


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


def common_settings(result: Line) -> dict[str, Any]:
    """What must be equal in all results of a table: everything but what the tables vary."""
    recipe = {key: dict(value) for key, value in result["recipe"].items() if type(value) is dict}
    recipe["backbone"].pop("pooling", None)
    recipe["training"].pop("selector_learning_rate", None)
    recipe["objective"].pop("projection", None)
    kept = {key: recipe[key] for key in ("backbone", "objective", "training")}
    return {**kept, "corpus": result["corpus_sha256"]}


def write_tables(
    experiments: Sequence[Experiment], folder: Path, objectives: Sequence[str], command: str
) -> Path:
    """Write tables.md into ``folder``; returns its path.

    Raises `ConfigError` where nothing was run, or what was run cannot be compared.
    """
    parts, any_run = [PREFACE], False
    for objective in objectives:
        runs = read_results(folder, objective)
        any_run = any_run or bool(runs)
        parts += [f"## {objective}", _setting(runs)]
        for experiment in experiments:
            if objective in experiment.objectives:
                parts += [
                    f"### {experiment.title}",
                    *experiment_tables(experiment, objective, runs),
                ]
                parts += [f"- {note}" for note in experiment.notes]
    if not any_run:
        raise ConfigError(f"{folder} has no results: run something first, or name another folder.")
    return write_page(folder / TABLES_FILE, f"What was run on {folder.name}", command, parts)


def _setting(runs: ByArm) -> str:
    """One paragraph with the settings that all runs share."""
    for of_one in runs.values():
        common = common_settings(of_one[0])
        training = ", ".join(f"{key} {value}" for key, value in common["training"].items())
        versions = ", ".join(f"{key} {value}" for key, value in of_one[0]["versions"].items())
        return (
            f"Backbone {common['backbone']['name']}; corpus sha256 {common['corpus'][:12]}; "
            f"{training}. With {versions}."
        )
    return "Nothing was run."


def experiment_tables(experiment: Experiment, objective: str, runs: ByArm) -> list[str]:
    """The scores of an experiment, and what was tested of them."""
    part, tasks = ("transfer", transfer.TASKS) if experiment.transfer else ("scores", TASKS)
    tested = get(part, AVERAGE)
    cells = {name: spread(get(part, name)) for name in (*tasks, AVERAGE)}
    printed = _printed_columns(experiment, objective)
    scored = {
        row.name: [run for run in runs.get(row.name, ()) if tested(run) is not None]
        for row in experiment.rows
    }
    most = max(map(len, scored.values()))
    shown = {name: of for name, of in scored.items() if len(of) > 1 or len(of) == most > 0}
    lines = []
    for row in experiment.rows:
        blank = [NOT_RUN, *[""] * len(tasks)]
        ours = [cell(shown[row.name]) for cell in cells.values()] if row.name in shown else blank
        theirs = [of.get(row.name, "") for of in printed.values()]
        label = row.label if any(theirs) else f"{row.label} (not in the paper)"
        lines.append([label, str(len(scored[row.name])), *ours, *theirs])
    scores = markdown_table(["", "n", *cells, *printed], lines)
    return [scores, *_comparisons(experiment, shown, tested)]


def _printed_columns(experiment: Experiment, objective: str) -> dict[str, dict[str, str]]:
    """The paper's columns beside ours: header to configuration name to text."""
    return {
        f"paper, {backbone}-base: {experiment.printed_scores}": {
            name + preset: " / ".join(f"{value:.2f}" for value in row)
            for name, row in table.items()
            for preset in ("", *(f"-{each}" for each in PRESETS))
        }
        for (backbone, of), table in experiment.printed.items()
        if of == objective.removesuffix("-mean")
    }


def _comparisons(experiment: Experiment, runs: ByArm, tested: Value) -> Iterator[str]:
    """Every row less the one it is tested against, then the rows that the paper has in an order."""
    labels = {row.name: row.label for row in experiment.rows}
    to_bases = [(row.name, row.base) for row in experiment.rows if row.base]
    for pairs in (to_bases, experiment.orders):
        sides = [
            (f"{labels[first]}, minus {labels[second]}", runs.get(first, ()), runs.get(second, ()))
            for first, second in pairs
        ]
        if compared := compare(sides, tested):
            yield comparisons_table("", AVERAGE, compared)
