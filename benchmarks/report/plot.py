"""The plot of the results: throughput by load, the latency of a lone request, open-loop load."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.load.closed_loop import LOADS
from benchmarks.report.results import (
    Results,
    measured,
    median_at,
    open_loop_percents,
    spread_at,
)


def save_plot(results: Results, path: Path) -> None:
    """Draw the panels and write them to ``path``; the same file for the same numbers."""
    mpl.rcParams["svg.hashsalt"] = "s2sent"
    servers = [name for name in measured(results) if results["systems"][name]["is_server"]]
    open_loop = [name for name in servers if open_loop_percents(results, name)]
    panels = 3 if open_loop else 2
    figure = Figure(figsize=(6 * panels, 4.8), layout="constrained")
    axes = figure.subplots(1, panels)
    _draw_throughput(results, servers, axes[0])
    _draw_lone_latency(results, servers, axes[1])
    if open_loop:
        _draw_open_loop(results, open_loop, axes[2])
    lines, labels = axes[0].get_legend_handles_labels()
    if lines:
        figure.legend(lines, labels, loc="outside lower center", ncols=min(4, len(lines)))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_throughput(results: Results, servers: list[str], axes: Axes) -> None:
    """Groups of bars, one group a load, with min and max."""
    loads = [
        load
        for load in LOADS
        if any(spread_at(results, name, "loads", load.name, "texts_per_second") for name in servers)
    ]
    width = 0.8 / max(1, len(servers))
    for index, name in enumerate(servers):
        places, heights, below, above = [], [], [], []
        for place, load in enumerate(loads):
            seen = spread_at(results, name, "loads", load.name, "texts_per_second")
            if seen:
                places.append(place + (index - (len(servers) - 1) / 2) * width)
                heights.append(seen.median)
                below.append(seen.median - seen.least)
                above.append(seen.most - seen.median)
        axes.bar(
            places,
            heights,
            width,
            yerr=[below, above],
            color=_colour(results, name),
            label=results["systems"][name]["label"],
            error_kw={"elinewidth": 0.8},
        )
    axes.set_xticks(range(len(loads)), [load.short_label for load in loads])
    axes.set(title="Throughput", xlabel="connections x texts a request", ylabel="texts/s")
    axes.grid(axis="y", alpha=0.3)


def _draw_lone_latency(results: Results, servers: list[str], axes: Axes) -> None:
    """A bar to the p50 and a mark at the p99 of each server."""
    for place, name in enumerate(reversed(servers)):
        p50 = median_at(results, name, "loads", "c1", "p50_ms")
        p99 = median_at(results, name, "loads", "c1", "p99_ms")
        if p50 is None or p99 is None:
            continue
        axes.barh(place, p50, color=_colour(results, name))
        axes.plot([p50, p99], [place, place], color="black", linewidth=0.8)
        axes.plot(p99, place, marker="|", color="black")
    labels = [results["systems"][name]["label"] for name in reversed(servers)]
    axes.set_yticks(range(len(servers)), labels)
    axes.set(title="A lone request: p50, and a line to p99", xlabel="ms", xlim=(0, None))
    axes.grid(axis="x", alpha=0.3)


def _draw_open_loop(results: Results, servers: list[str], axes: Axes) -> None:
    for name in servers:
        percents = open_loop_percents(results, name)
        values = [median_at(results, name, "open_loop", percent, "p99_ms") for percent in percents]
        heights = [float("nan") if value is None else value for value in values]
        axes.plot(percents, heights, marker="o", color=_colour(results, name))
    axes.set(
        title="Open loop, from the intended send time",
        xlabel="load, % of the system's own capacity",
        ylabel="p99, ms",
        yscale="log",
    )
    axes.grid(alpha=0.3)


def _colour(results: Results, name: str) -> str:
    """The system's own colour, which it keeps in every panel."""
    return f"C{list(results['systems']).index(name)}"
