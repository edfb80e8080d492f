"""Draws the figures of a report as SVG for an HTML page.

Lines and texts have the page's text colour and the background is transparent, which suits light
and dark pages. The same numbers give the same bytes.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.figure import Figure

from s2sent.training.evaluation.geometry import GRID, BlockWeights, Group

INK = "#010203"  # replaced by the page's text colour in the SVG
COLORS = ("#d1495b", "#e08e1b", "#3f8f6b", "#2e86c1", "#8e5bb5", "#808890", "#b07d4f")
STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.prop_cycle": cycler(color=COLORS),
}


def plot_scores(rows: Mapping[str, Mapping[str, float]], label: str) -> str:
    """One dot for each encoder and task; ``rows`` is encoder to task to score."""
    with _drawing("scores", height=3.2) as (figure, svg):
        axes = figure.subplots()
        for place, (name, scores) in enumerate(rows.items()):
            shift = 0.12 * (place - (len(rows) - 1) / 2)
            at = np.arange(len(scores)) + shift
            axes.plot(at, list(scores.values()), "o", label=_short(name), markersize=7, zorder=3)
        tasks = list(next(iter(rows.values())))
        axes.set_xticks(range(len(tasks)), tasks)
        axes.set_ylabel(label)
        axes.grid(axis="y", color=INK, alpha=0.12)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    return svg[0]


def plot_densities(groups: Mapping[str, Sequence[Group]]) -> str:
    """Each encoder's cosines: one density above the other, a row for each group of gold score."""
    with _drawing("densities", height=4.2) as (figure, svg):
        columns = figure.subplots(1, len(groups), sharex=True, sharey=True, squeeze=False)[0]
        densities = {name: [group.density() for group in of] for name, of in groups.items()}
        lowest = min(float(group.cosines.min()) for of in groups.values() for group in of)
        shown = max(-1, lowest - 0.05) < GRID
        tallest = max(float(density.max()) for of in densities.values() for density in of)
        for axes, (name, of) in zip(columns, groups.items(), strict=True):
            for place in reversed(range(len(of))):
                top = place + 1.5 * densities[name][place][shown] / tallest
                axes.fill_between(GRID[shown], place, top, color=COLORS[place], alpha=0.55)
                axes.plot(GRID[shown], top, color=COLORS[place], linewidth=1)
                mean = float(of[place].cosines.mean())
                axes.plot([mean, mean], [place, place + 0.35], color=INK, linewidth=1.4)
            axes.set_title(_short(name), fontsize=10)
            axes.set_xlabel("cosine")
            axes.set_yticks(range(len(of)), [group.name for group in of])
        columns[0].set_xlim(GRID[shown][0], 1.02)
        columns[0].set_ylabel("gold score")
    return svg[0]


def plot_weights(weights: BlockWeights) -> str:
    """The mean weight of each block and feature as a map, and each block's weights as a curve."""
    names = [f"block {number}" for number in weights.blocks]
    with _drawing("weights", height=1.9 + 0.32 * len(names)) as (figure, svg):
        left, right = figure.subplots(1, 2, width_ratios=[3, 2])
        image = left.imshow(weights.mean, aspect="auto", interpolation="nearest", cmap="viridis")
        left.set_yticks(range(len(names)), names)
        left.set_xlabel("feature")
        figure.colorbar(image, ax=left, label="mean weight", pad=0.02)
        low, high = float(weights.mean.min()), float(weights.mean.max())
        edges = np.linspace(low, high, 41) if high - low > 1e-9 else np.linspace(0, 2 * high, 41)
        for name, row in zip(names, weights.mean, strict=True):
            right.hist(row, bins=list(edges), histtype="stepfilled", alpha=0.55, label=name)
        right.axvline(1 / len(names), color=INK, linestyle=":", linewidth=1.2)
        right.set_xlabel("mean weight")
        right.set_ylabel("features")
        right.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=9)
    return svg[0]


def plot_curve(curve: Sequence[tuple[float, float]], kept: tuple[float, float] | None) -> str:
    """The dev score by step, with the step that was kept marked."""
    with _drawing("curve", height=2.8) as (figure, svg):
        axes = figure.subplots()
        steps, scores = zip(*curve, strict=True)
        axes.plot(steps, scores, color=COLORS[3], marker=".", linewidth=1.5)
        if kept is not None:
            axes.plot(*kept, "o", color=COLORS[0], markersize=8)
            axes.annotate(f"{kept[1]:.2f}", kept, (0, 8), textcoords="offset points", ha="center")
        axes.margins(y=0.15)
        axes.set_xlabel("step")
        axes.set_ylabel("Spearman × 100")
        axes.grid(axis="y", color=INK, alpha=0.12)
    return svg[0]


@contextmanager
def _drawing(name: str, *, height: float) -> Iterator[tuple[Figure, list[str]]]:
    """A figure, 8 inches wide; the list contains its SVG after the block."""
    svg: list[str] = []
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(8, height), layout="constrained")
        yield figure, svg
        file = io.StringIO()
        metadata: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    for mark in (' id="', "url(#", 'href="#'):  # ids are unique in the page
        text = text.replace(mark, f"{mark}{name}-")
    svg.append(text)


def _short(name: str) -> str:
    """The end of a long name."""
    return name if len(name) <= 36 else f"…{name[-35:]}"
