"""Plots of experiments: boxes, dots with their mean, and densities of cosines, as SVG files."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from s2sent.training.evaluation.geometry import GRID, Group
from s2sent.training.experiments.paper.plan.experiments import Experiment, TableRow
from s2sent.training.experiments.paper.results import Results, Value
from s2sent.training.report.figures import COLORS

NOT_RUN = "not run"
ByRow = Sequence[tuple[TableRow, Sequence[float]]]


def plot(experiment: Experiment, results: Results, value: Value) -> Figure | None:
    """The figure of an experiment's ``value`` for all seeds; None where nothing of it was run."""
    by_row = [(row, results.values(row.configuration.name, value)) for row in experiment.rows]
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
    """One box, over all seeds, for each n (and all m), each m (and all n) or each r."""
    boxes: dict[float, list[float]] = {}
    for row, values in by_row:
        if row.at is not None and values:
            boxes.setdefault(row.at[place], []).extend(values)
    axes.boxplot(list(boxes.values()), tick_labels=[f"{key:g}" for key in boxes])
    axes.set_xlabel(letter)
    axes.set_ylabel("average, Spearman x 100")
    axes.grid(axis="y", alpha=0.3)


def _dots(by_row: ByRow) -> Figure:
    """A row for each configuration: each seed is a dot, their mean a line."""
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
