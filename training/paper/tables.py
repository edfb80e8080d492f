"""Tables and plots of what `training.paper.runs` left in a folder, as tables.md and SVG files.

Everything is built from the result files, so tables can be built again at any time, and a cell that
has no file shows as "not run". Differences are tested by Welch's t-test at 5 %, over seeds.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from training.errors import ConfigError
from training.evaluation import transfer
from training.evaluation.figures import COLORS
from training.evaluation.geometry import GRID, Group
from training.evaluation.sts import TASKS
from training.paper.claims import LEVEL, findings, welch
from training.paper.experiments import (
    PAPER_TABLE_2,
    PAPER_TABLE_3,
    PAPER_TABLE_4,
    Configuration,
    Experiment,
    Row,
)
from training.paper.runs import OVERHEAD_FILE, difference, read_result

NOT_RUN = "not run"
TABLES_FILE = "tables.md"

Result = Mapping[str, Any]
ByRow = Sequence[tuple[Row, Sequence[float]]]
Column = tuple[str, Callable[[Result], float | None], str]  # header, value of a run, format


@dataclass(frozen=True)
class Results:
    """The runs of one backbone and objective: by configuration, in the order of their seeds."""

    objective: str
    runs: Mapping[str, Sequence[Result]]

    def values(self, name: str, of: Callable[[Result], float | None]) -> list[float]:
        """One value for each seed of a configuration that has it."""
        found = (of(result) for result in self.runs.get(name, ()))
        return [value for value in found if value is not None]


def read_results(folder: Path, objective: str) -> Results:
    """Every result of an objective. Raises `ConfigError` where two cannot stand in one table."""
    runs: dict[str, list[Result]] = {}
    first: tuple[Path, dict[str, Any]] | None = None
    for file in sorted((folder / objective).glob("*.seed*.json")):
        result = read_result(file)
        common = _common(result)
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


def _common(result: Result) -> dict[str, Any]:
    """What all runs of a table have in common: all but what the tables vary."""
    recipe = {key: dict(value) for key, value in result["recipe"].items() if type(value) is dict}
    recipe["backbone"].pop("pooling", None)
    recipe["training"].pop("selector_learning_rate", None)
    kept = {key: recipe[key] for key in ("backbone", "objective", "training")}
    return {**kept, "corpus": result["corpus_sha256"]}


def write_tables(
    experiments: Sequence[Experiment], folder: Path, objectives: Sequence[str], command: str
) -> Path:
    """Write tables.md and its plots into ``folder``; returns its path.

    Raises `ConfigError` where nothing was run, or what was run cannot be compared.
    """
    parts = [f"# What was run on {folder.name}", _preface(command)]
    latency = _latency(folder)
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
        f"that tests are against, which has none; p is Welch's t-test, in bold below {LEVEL:g}. "
        "The paper's numbers are of other backbones, trained from other weights on another "
        "corpus: compare differences within a column, never a number of ours with one of theirs."
    )


def _setting(results: Results) -> str:
    """What all the runs had in common, in one paragraph."""
    for of_one in results.runs.values():
        common = _common(of_one[0])
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
    if plot := _plot(experiment, results):
        name = f"{results.objective}-{experiment.key.replace(' ', '-')}.svg"
        save(plot, folder / name)
        parts.append(f"![{experiment.title}]({name})")
    return parts


def experiment_table(experiment: Experiment, results: Results) -> str:
    """The Markdown table of an experiment."""
    columns, main = _columns(experiment)
    printed = _printed(experiment, results.objective)
    head = ["", "n", *(header for header, _, _ in columns), "Δ", "p", *printed]
    lines = []
    for row in experiment.rows:
        name = row.configuration.name
        count = len(results.values(name, main))
        cells = [_cell(results.values(name, of), form) for _, of, form in columns]
        label = f"{row.label} (not in the paper)" if row.ours else row.label
        lines.append(
            [
                label,
                str(count),
                *(cells if count else [NOT_RUN] + [""] * (len(cells) - 1)),
                *_against_base(row, results, main),
                *(texts.get(name, "") for texts in printed.values()),
            ]
        )
    return markdown(head, lines)


def _columns(experiment: Experiment) -> tuple[list[Column], Callable[[Result], float | None]]:
    """What a table shows of each run, and what is tested."""
    if experiment.transfer:
        tasks = [*transfer.TASKS, "average"]
        columns = [(task, _get("transfer", task), ".2f") for task in tasks]
        return columns, _get("transfer", "average")
    average = _get("scores", "average")
    columns = [(task, _get("scores", task), ".2f") for task in TASKS]
    columns.append(("average", average, ".2f"))
    return columns + EXTRA.get(experiment.key, []), average


def _get(*path: str) -> Callable[[Result], float | None]:
    """A value inside a result; None where it is not there."""

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
    """The paper's columns beside ours: header to configuration's name to text."""
    # Where a prompt is pooled by its mean, the paper's numbers are the same ones.
    objective = objective.removesuffix("-mean")
    columns: dict[str, dict[str, str]] = {}
    for backbone in ("BERT", "RoBERTa"):
        key = (backbone, objective)
        if experiment.key == "table 2":
            header = f"paper, {backbone}-base: STS-B / SICK-R / average"
            rows = PAPER_TABLE_2[key].items()
            columns[header] = {name: " / ".join(f"{v:.2f}" for v in row) for name, row in rows}
        elif experiment.key == "table 3":
            averages = PAPER_TABLE_3.get(key, {}).items()
            columns[f"paper, {backbone}-base: average"] = {n: f"{v:.2f}" for n, v in averages}
        elif experiment.key == "table 4":
            transfers = PAPER_TABLE_4[key].items()
            columns[f"paper, {backbone}-base: average"] = {n: f"{v[-1]:.2f}" for n, v in transfers}
    return columns


def _cell(values: Sequence[float], form: str) -> str:
    if not values:
        return ""
    spread = f" ± {stdev(values):{form.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{fmean(values):{form}}{spread}"


def _against_base(
    row: Row, results: Results, main: Callable[[Result], float | None]
) -> tuple[str, str]:
    """Δ and p of a row; empty where there is nothing to compare."""
    own = results.values(row.configuration.name, main)
    base = results.values(row.base.name, main) if row.base else []
    if not (own and base):
        return "", ""
    p = welch(own, base)
    text = "no test" if p is None else f"{p:.3f}"
    return (
        f"{fmean(own) - fmean(base):+.2f}",
        f"**{text}**" if p is not None and p < LEVEL else text,
    )


def claims_table(results: Results, overhead: Mapping[str, float | None]) -> str:
    """Each claim of the paper, whether it holds here, and by which numbers."""
    average = _get("scores", "average")
    scores = {name: results.values(name, average) for name in results.runs}
    shares = results.values("last3-2d", _parameter_share)
    known = {**overhead, "parameters": shares[0] if shares else overhead.get("parameters")}
    lines = [[f.claim, f"**{f.verdict}**", f.numbers] for f in findings(scores, known)]
    return markdown(["claim", "here", "numbers"], lines)


def _latency(folder: Path) -> list[str]:
    """What a selector adds in parameters and time, if that was measured."""
    file = folder / OVERHEAD_FILE
    if not file.is_file():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    lines = []
    for cell in content["cells"]:
        added = cell["selector"]
        reach = f"{added['lower_quartile_percent']:+.2f} to {added['upper_quartile_percent']:+.2f}"
        processor = added["processor_median_percent"]
        lines.append(
            [
                f"{cell['precision']}, {cell['batch_size']} x {cell['length']}",
                str(cell["rounds"]),
                f"{cell['median_ms']['plain']:.1f}",
                f"{added['median_percent']:+.2f}",
                reach,
                "" if processor is None else f"{processor:+.2f}",
            ]
        )
    machine, counts = content["machine"], content.get("parameters")
    said = f"Last3 2D on {machine.get('gpu', machine['processor'])}, {content['runtime']}"
    if counts:
        said += (
            f": {counts['selector']:,} parameters beside {counts['backbone']:,}, "
            f"{counts['share_percent']:.2f} %"
        )
    head = ["texts x tokens", "rounds", "without, ms", "added, %", "quartiles", "of processor, %"]
    return ["## What the selector adds", f"{said}.", markdown(head, lines)]


def read_overhead(folder: Path) -> dict[str, float | None]:
    """The shares of parameters and of time that were measured, in percent; of time the median over
    cells of the medians and of the quartiles over rounds."""
    file = folder / OVERHEAD_FILE
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    added = [cell["selector"] for cell in content["cells"]]
    counts = content.get("parameters", {})  # not counted in exported artifacts
    return {
        "parameters": counts.get("share_percent"),
        "latency": median(cell["median_percent"] for cell in added),
        "latency_lower": median(cell["lower_quartile_percent"] for cell in added),
        "latency_upper": median(cell["upper_quartile_percent"] for cell in added),
    }


def _details(configurations: Iterable[Configuration], results: Results) -> str:
    """What else is told of every configuration."""
    columns: list[Column] = [
        ("dev", _get("dev"), ".2f"),
        ("best step", _get("step"), ".0f"),
        *((key, _get("geometry", key), ".3f") for key in ("alignment", "uniformity")),
        *((k, _get("geometry", k), ".3f") for k in ("pos_over_random", "align_over_abs_uniform")),
        ("weights moved", _get("weights", "moved"), ".4f"),
        ("seconds", _get("seconds"), ".0f"),
    ]
    lines = []
    for configuration in configurations:
        name = configuration.name
        count = len(results.runs.get(name, ()))
        cells = [_cell(results.values(name, of), form) for _, of, form in columns]
        weights = _mean_weights(results.runs.get(name, ()))
        shown = [*cells, weights] if count else [NOT_RUN] + [""] * len(cells)
        lines.append([f"{configuration.label} (`{name}`)", *shown])
    headers = [header for header, _, _ in columns]
    return markdown(["", *headers, "mean weight, oldest block first"], lines)


def _mean_weights(runs: Sequence[Result]) -> str:
    known = [result["mean_block_weights"] for result in runs if result["mean_block_weights"]]
    return " ".join(f"{weight:.3f}" for weight in np.mean(known, axis=0)) if known else ""


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _plot(experiment: Experiment, results: Results) -> Figure | None:
    """The figure of an experiment; None where nothing of it was run."""
    _, main = _columns(experiment)
    by_row = [(row, results.values(row.configuration.name, main)) for row in experiment.rows]
    if not any(values for _, values in by_row):
        return None
    if experiment.key == "figure 6":
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        for axes, place, letter in zip(
            figure.subplots(1, 2, sharey=True), (0, 1), "nm", strict=True
        ):
            _boxes(axes, by_row, place, letter)
        return figure
    if experiment.key == "figure 8":
        return _densities(experiment, results)
    if experiment.key == "figure 7":
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        _boxes(figure.subplots(), by_row, 0, "r")
        return figure
    return _dots(by_row)


def _boxes(axes: Axes, by_row: ByRow, place: int, letter: str) -> None:
    """A box for each n (over all m), each m (over all n) or each r; all seeds are in it."""
    boxes: dict[float, list[float]] = {}
    for row, values in by_row:
        if row.at is not None and values:
            boxes.setdefault(row.at[place], []).extend(values)
    axes.boxplot(list(boxes.values()), tick_labels=[f"{key:g}" for key in boxes])
    axes.set_xlabel(letter)
    axes.set_ylabel("average, Spearman x 100")
    axes.grid(axis="y", alpha=0.3)


def _dots(by_row: ByRow) -> Figure:
    """Each seed as a dot, the mean as a line, a row for each configuration."""
    figure = Figure(figsize=(8, 0.8 + 0.36 * len(by_row)), layout="constrained")
    axes = figure.subplots()
    for place, values in enumerate(values for _, values in by_row):
        if values:
            axes.plot(values, [place] * len(values), "o", color=COLORS[3], alpha=0.7)
            axes.plot([fmean(values)] * 2, [place - 0.3, place + 0.3], color=COLORS[0])
        else:
            axes.annotate(NOT_RUN, (0.5, place), xycoords=("axes fraction", "data"), va="center")
    axes.set_yticks(range(len(by_row)), [row.label for row, _ in by_row])
    axes.set_ylim(len(by_row) - 0.5, -0.5)
    axes.set_xlabel("average")
    axes.grid(axis="x", alpha=0.3)
    return figure


def _densities(experiment: Experiment, results: Results) -> Figure:
    """The densities of cosines by gold score, a panel for each row that was run, over all seeds."""
    runs = [
        (row, found)
        for row in experiment.rows
        if (found := results.runs.get(row.configuration.name))
    ]
    figure = Figure(figsize=(8, 2.4 * -(-len(runs) // 2)), layout="constrained")
    panels = figure.subplots(-(-len(runs) // 2), 2, squeeze=False, sharex=True, sharey=True).flat
    for axes, (row, of_row) in zip(panels, runs, strict=False):
        for color, name in zip(COLORS, of_row[0]["cosines"], strict=False):
            low, high = map(int, name.split("-"))
            cosines = np.concatenate([result["cosines"][name] for result in of_row])
            axes.fill_between(
                GRID, Group(low, high, cosines).density(), color=color, alpha=0.5, label=name
            )
        axes.set_title(row.label, fontsize=10)
        axes.set_xlim(-0.3, 1.05)
    figure.supxlabel("cosine, by gold score")
    figure.axes[0].legend(fontsize=8)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG; the same numbers give the same bytes."""
    metadata: dict[str, Any] = {"Date": None}
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata=metadata)
