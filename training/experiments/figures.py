"""Draws results as SVG files: the same numbers give the same bytes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from s2sent.training.evaluation.geometry import GRID, Group
from s2sent.training.experiments.tables import NOT_RUN, Runs
from s2sent.training.report.figures import COLORS


def save(figure: Figure, path: Path) -> None:
    """Write a figure as SVG."""
    metadata: dict[str, Any] = {"Date": None}
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata=metadata)


def dots(rows: Sequence[tuple[str, Sequence[float]]]) -> Figure:
    """A row an arm: each seed is a dot, their mean a line."""
    figure = Figure(figsize=(8, 0.8 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (_, values) in enumerate(rows):
        if values:
            axes.plot(values, [place] * len(values), "o", color=COLORS[3], alpha=0.7)
            axes.plot([fmean(values)] * 2, [place - 0.3, place + 0.3], color=COLORS[0])
        else:
            axes.annotate(NOT_RUN, (0.5, place), xycoords=("axes fraction", "data"), va="center")
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("average")
    axes.grid(axis="x", alpha=0.3)
    return figure


def densities(panels: Mapping[str, Runs]) -> Figure:
    """A panel an arm: the densities of cosines by gold score, over all seeds."""
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(8, 2.4 * rows), layout="constrained")
    places = figure.subplots(rows, 2, squeeze=False, sharex=True, sharey=True).flat
    for axes, (label, runs) in zip(places, panels.items(), strict=False):
        for color, name in zip(COLORS, runs[0]["cosines"], strict=False):
            low, high = map(int, name.split("-"))
            cosines = np.concatenate([run["cosines"][name] for run in runs])
            density = Group(low, high, cosines).density()
            axes.fill_between(GRID, density, color=color, alpha=0.5, label=name)
        axes.set_title(label, fontsize=10)
        axes.set_xlim(-0.3, 1.05)
    figure.supxlabel("cosine, by gold score")
    figure.axes[0].legend(fontsize=8)
    return figure


def weights_of_blocks(runs: Mapping[str, Runs], last: int) -> Figure:
    """A row an arm: the mean weight of each block, of which ``last`` is the deepest."""
    figure = Figure(figsize=(8, 0.8 + 0.42 * len(runs)), layout="constrained")
    axes = figure.subplots()
    deepest = max(len(of[0]["block_weights"]) for of in runs.values())
    for row, of_arm in enumerate(runs.values()):
        columns = zip(*(reversed(run["block_weights"]) for run in of_arm), strict=True)
        for back, weights in enumerate(columns):
            place, weight = last - back, fmean(weights)
            axes.scatter(place, row, s=900 * weight, color="tab:blue", alpha=0.6)
            axes.annotate(f"{weight:.2f}", (place, row), ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(runs)), [*runs], fontsize=8)
    axes.set_ylim(len(runs) - 0.4, -0.6)
    axes.set_xticks(range(last - deepest + 1, last + 1))
    axes.set_xlabel("block")
    return figure
