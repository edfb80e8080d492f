"""The plot of the results: throughput over connections, latency percentiles, open-loop load."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.load.closed_loop import LOADS
from benchmarks.report.results import RAW, Results, measured, median_at, open_loop_percents

PERCENTILES = ("50", "90", "99", "99.9")
ONE_TEXT = [load for load in LOADS if load.texts_per_request == 1 and load.kind == "short"]


def save_plot(results: Results, path: Path) -> None:
    """Draw three panels and write them to ``path``; the same file for the same numbers."""
    mpl.rcParams["svg.hashsalt"] = "s2sent"
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    over_connections, percentiles, open_loop = figure.subplots(1, 3)
    _draw_throughput(results, over_connections)
    _draw_percentiles(results, percentiles)
    _draw_open_loop(results, open_loop)
    lines, labels = over_connections.get_legend_handles_labels()
    if lines:
        figure.legend(lines, labels, loc="outside lower center", ncols=len(lines))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_throughput(results: Results, axes: Axes) -> None:
    for name in _servers(results):
        values = [
            median_at(results, name, "loads", load.name, "texts_per_second") for load in ONE_TEXT
        ]
        _draw_line(axes, [str(load.connections) for load in ONE_TEXT], values, results, name)
    limit = median_at(results, RAW, "loads", "batches", "texts_per_second")
    if limit is not None:
        axes.axhline(limit, color="grey", linestyle="--", label=results["systems"][RAW]["label"])
    axes.set(title="One text a request", xlabel="connections", ylabel="texts/s", ylim=(0, None))
    axes.grid(alpha=0.3)


def _draw_percentiles(results: Results, axes: Axes) -> None:
    for name in _servers(results):
        values = [median_at(results, name, "loads", "c64", f"p{p}_ms") for p in PERCENTILES]
        _draw_line(axes, list(PERCENTILES), values, results, name)
    axes.set(title="64 connections x 1 text", xlabel="percentile", ylabel="ms", yscale="log")
    axes.grid(alpha=0.3)


def _draw_open_loop(results: Results, axes: Axes) -> None:
    for name in _servers(results):
        percents = open_loop_percents(results, name)
        if not percents:
            continue
        values = [median_at(results, name, "open_loop", percent, "p99_ms") for percent in percents]
        _draw_line(axes, percents, values, results, name)
    axes.set(
        title="Open loop, from the intended send time",
        xlabel="load, % of the system's own capacity",
        ylabel="p99, ms",
        yscale="log",
    )
    axes.grid(alpha=0.3)


def _servers(results: Results) -> list[str]:
    return [name for name in measured(results) if results["systems"][name]["is_server"]]


def _draw_line(
    axes: Axes, places: list[str], values: list[float | None], results: Results, name: str
) -> None:
    """One system in its own colour, which it keeps in every panel; gaps stay gaps."""
    colour = f"C{list(results['systems']).index(name)}"
    heights = [float("nan") if value is None else value for value in values]
    label = results["systems"][name]["label"]
    axes.plot(places, heights, marker="o", color=colour, label=label)
