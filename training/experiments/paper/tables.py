"""The Markdown tables of a backbone's results, with their plots, built from the result files alone.

A row without results shows as "not run", and so does one of a single seed beside rows of several.
Differences are tested by seeds, at 5 % after Holm's correction over the table.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation import transfer
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.published import TABLE_2, TABLE_3, TABLE_4
from s2sent.training.evaluation.results.statistics import (
    LEAST_MOVEMENT,
    LEVEL,
    PairedDifference,
    holm,
    mean_and_spread,
    p_value,
    paired,
)
from s2sent.training.evaluation.sts import TASKS
from s2sent.training.experiments.paper.claims import findings
from s2sent.training.experiments.paper.latency import latency_section, read_overhead
from s2sent.training.experiments.paper.plan.configurations import Configuration
from s2sent.training.experiments.paper.plan.experiments import Experiment
from s2sent.training.experiments.paper.plots import NOT_RUN, plot, save
from s2sent.training.experiments.paper.results import (
    Result,
    Results,
    Value,
    common_settings,
    read_results,
)

TABLES_FILE = "tables.md"

Column = tuple[str, Value, str]  # header, value of a result, format


def write_tables(
    experiments: Sequence[Experiment], folder: Path, objectives: Sequence[str], command: str
) -> Path:
    """Write tables.md and its plots into ``folder``; returns its path.

    Raises `ConfigError` where nothing was run, or what was run cannot be compared.
    """
    parts = [f"# What was run on {folder.name}", _preface(command)]
    latency = latency_section(folder)
    any_run = bool(latency)
    parts += latency
    for objective in objectives:
        results = read_results(folder, objective)
        any_run = any_run or bool(results.runs)
        parts += [f"## {objective}", _setting(results)]
        for experiment in experiments:
            if objective in experiment.objectives:
                parts += _section(experiment, results, folder)
        parts += ["### The paper's claims", claims_table(results, read_overhead(folder))]
        names = {name: c for e in experiments for name, c in e.configurations.items()}
        parts += ["### Geometry, weights and training", _details(names.values(), results)]
    if not any_run:
        raise ConfigError(f"{folder} has no results: run something first, or name another folder.")
    file = folder / TABLES_FILE
    file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return file


def _preface(command: str) -> str:
    return (
        f"Made by `{command}`.\n\n"
        "Scores are Spearman x 100, as mean ± standard deviation over n seeds. Δ is to the row "
        f"that tests are against, which has none; p is the t-test by seeds with Holm's correction "
        f"over the table, in bold below {LEVEL:g}. "
        "The paper's numbers are of other backbones, trained from other weights on another "
        "corpus: compare differences within a column, never a number of ours with one of theirs."
    )


def _setting(results: Results) -> str:
    """One paragraph with the settings that all runs share."""
    for of_one in results.runs.values():
        common = common_settings(of_one[0])
        training = ", ".join(f"{key} {value}" for key, value in common["training"].items())
        versions = ", ".join(f"{key} {value}" for key, value in of_one[0]["versions"].items())
        return (
            f"Backbone {common['backbone']['name']}; corpus sha256 {common['corpus'][:12]}; "
            f"{training}. With {versions}."
        )
    return "Nothing was run."


def _section(experiment: Experiment, results: Results, folder: Path) -> list[str]:
    parts = [f"### {experiment.title}", experiment_table(experiment, results)]
    parts += [f"- {note}" for note in experiment.notes]
    _, main = _columns(experiment)
    if figure := plot(experiment, results, main):
        name = f"{results.objective}-{experiment.key.replace(' ', '-')}.svg"
        save(figure, folder / name)
        parts.append(f"![{experiment.title}]({name})")
    return parts


def experiment_table(experiment: Experiment, results: Results) -> str:
    """The Markdown table of an experiment."""
    columns, main = _columns(experiment)
    printed = _printed(experiment, results.objective)
    head = ["", "n", *(header for header, _, _ in columns), "Δ", "p", *printed]
    most = max(len(results.values(row.configuration.name, main)) for row in experiment.rows)
    tests = _against_bases(experiment, results, main)
    lines = []
    for row, test in zip(experiment.rows, tests, strict=True):
        name = row.configuration.name
        count = len(results.values(name, main))
        shown = count > 1 or count == most > 0
        cells = [mean_and_spread(results.values(name, of), form) for _, of, form in columns]
        label = f"{row.label} (not in the paper)" if row.ours else row.label
        lines.append(
            [
                label,
                str(count),
                *(cells if shown else [NOT_RUN] + [""] * (len(cells) - 1)),
                *(test if shown else ("", "")),
                *(texts.get(name, "") for texts in printed.values()),
            ]
        )
    return markdown_table(head, lines)


def _columns(experiment: Experiment) -> tuple[list[Column], Value]:
    """The columns of a table, and the value that is tested."""
    if experiment.transfer:
        tasks = [*transfer.TASKS, "average"]
        columns = [(task, _get("transfer", task), ".2f") for task in tasks]
        return columns, _get("transfer", "average")
    average = _get("scores", "average")
    columns = [(task, _get("scores", task), ".2f") for task in TASKS]
    columns.append(("average", average, ".2f"))
    return columns + EXTRA.get(experiment.key, []), average


def _get(*path: str) -> Value:
    """Reads a nested value of a result; None where it is missing."""

    def get(result: Result) -> float | None:
        value: Any = result
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        return None if value is None else float(value)

    return get


def _parameter_share(result: Result) -> float | None:
    counts = result["parameters"]
    return float(100 * counts["selector"] / counts["backbone"])


_SPREAD = _get("by_gold", "spread")
EXTRA: dict[str, list[Column]] = {
    "table 2": [("parameters added, %", _parameter_share, ".4f")],
    "figure 7": [("parameters added, %", _parameter_share, ".4f")],
    "figure 8": [
        *(
            (
                f"cosine at {low}-{low + 1}",
                _get("by_gold", "groups", f"{low}-{low + 1}", "mean"),
                ".3f",
            )
            for low in range(5)
        ),
        ("spread", _SPREAD, ".3f"),
    ],
    "control x1": [("moved", _get("weights", "moved"), ".4f")],
    "control x6": [("drift", _get("drift"), ".1e")],
    "control x7": [("shuffled", _get("shuffled"), "+.3f")],
    "control x8": [("moved", _get("weights", "moved"), ".4f")],
}


def _printed(experiment: Experiment, objective: str) -> dict[str, dict[str, str]]:
    """The paper's columns beside ours: header to configuration name to text."""
    # The paper has one set of numbers for both poolings of a prompt.
    objective = objective.removesuffix("-mean")
    columns: dict[str, dict[str, str]] = {}
    for backbone in ("BERT", "RoBERTa"):
        key = (backbone, objective)
        if experiment.key == "table 2":
            header = f"paper, {backbone}-base: STS-B / SICK-R / average"
            rows = TABLE_2[key].items()
            columns[header] = {name: " / ".join(f"{v:.2f}" for v in row) for name, row in rows}
        elif experiment.key == "table 3":
            averages = TABLE_3.get(key, {}).items()
            columns[f"paper, {backbone}-base: average"] = {n: f"{v:.2f}" for n, v in averages}
        elif experiment.key == "table 4":
            transfers = TABLE_4[key].items()
            columns[f"paper, {backbone}-base: average"] = {n: f"{v[-1]:.2f}" for n, v in transfers}
    return columns


def _against_bases(experiment: Experiment, results: Results, main: Value) -> list[tuple[str, str]]:
    """Δ and corrected p of every row; empty where there is nothing to compare."""
    still = unmoved(results)
    found: list[PairedDifference | None] = []
    for row in experiment.rows:
        base = results.by_seed(row.base.name, main) if row.base else {}
        found.append(paired(results.by_seed(row.configuration.name, main), base))
    names = [{row.configuration.name, row.base.name if row.base else ""} for row in experiment.rows]
    p_values = [
        of_row.p if of_row is not None and not pair & still else None
        for of_row, pair in zip(found, names, strict=True)
    ]
    cells = []
    for of_row, pair, p in zip(found, names, holm(p_values), strict=True):
        text = "not tested" if pair & still else p_value(p)
        bold = p is not None and p < LEVEL
        cells.append(
            ("", "") if of_row is None else (f"{of_row.mean:+.2f}", f"**{text}**" if bold else text)
        )
    return cells


def unmoved(results: Results) -> set[str]:
    """Configurations with a gate of which a run's fusion weights moved less than `LEAST_MOVEMENT`.

    Such runs compare starting points.
    """
    moved = _get("weights", "max_moved")
    return {
        name
        for name, runs in results.runs.items()
        if any(run["parameters"]["selector"] for run in runs)
        and any(value < LEAST_MOVEMENT for value in results.values(name, moved))
    }


def claims_table(results: Results, overhead: Mapping[str, float | None]) -> str:
    """The Markdown table of the paper's claims: the verdict here, and its numbers."""
    average = _get("scores", "average")
    scores = {name: results.by_seed(name, average) for name in results.runs}
    shares = results.values("last3-2d", _parameter_share)
    known = {**overhead, "parameters": shares[0] if shares else overhead.get("parameters")}
    judged = findings(scores, known, untested=unmoved(results))
    lines = [[f.claim, f"**{f.verdict}**", f.numbers] for f in judged]
    return markdown_table(["claim", "here", "numbers"], lines)


def _details(configurations: Iterable[Configuration], results: Results) -> str:
    """The Markdown table of geometry, weights and training of every configuration."""
    columns: list[Column] = [
        ("dev", _get("dev"), ".2f"),
        ("best step", _get("step"), ".0f"),
        *((key, _get("geometry", key), ".3f") for key in ("alignment", "uniformity")),
        *((k, _get("geometry", k), ".3f") for k in ("pos_over_random", "align_over_abs_uniform")),
        ("weights moved", _get("weights", "moved"), ".4f"),
        ("at most", _get("weights", "max_moved"), ".4f"),
        ("seconds", _get("seconds"), ".0f"),
    ]
    lines = []
    for configuration in configurations:
        name = configuration.name
        count = len(results.runs.get(name, ()))
        cells = [mean_and_spread(results.values(name, of), form) for _, of, form in columns]
        weights = _mean_weights(results.runs.get(name, ()))
        shown = [*cells, weights] if count else [NOT_RUN] + [""] * len(cells)
        lines.append([f"{configuration.label} (`{name}`)", *shown])
    headers = [header for header, _, _ in columns]
    return markdown_table(["", *headers, "mean weight, oldest block first"], lines)


def _mean_weights(runs: Sequence[Result]) -> str:
    known = [result["mean_block_weights"] for result in runs if result["mean_block_weights"]]
    return " ".join(f"{weight:.3f}" for weight in np.mean(known, axis=0)) if known else ""
