"""The tables and figures of control X4: a grid per arm, its area, and Welch tests of areas."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib
from scipy.stats import ttest_ind

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.statistics import (
    LEAST_MOVEMENT,
    LEAST_SPREAD,
    holm,
    verdict,
)
from s2sent.training.experiments.exits.plan import ARMS, COMPARED
from s2sent.training.files.jsonl import read_lines

Line = Mapping[str, Any]
TABLES_FILE, FIGURE_FILE = "x4.md", "x4.svg"
TIMES_FILE = "x4-times.json"  # milliseconds of a text alone by depth
QUALITY_FILE = "x4-times.svg"


def write_exit_tables(file: Path) -> Path:
    """Write tables and the figure of a file of results beside it; returns the tables' path.

    Raises `ConfigError` for a file without results.
    """
    lines = read_lines(file)
    if not lines:
        raise ConfigError(f"{file} has no results: run the control first.")
    parts = ["# X4: a selector at each exit"]
    for setting in sorted({_setting(line) for line in lines}):
        runs = _by_arm(lines, setting)
        parts += [f"## {setting[-1]} steps", _preface(next(of[0] for of in runs.values() if of))]
        parts += [_exit_table(runs), *(_test_table(runs, arm) for arm in COMPARED if runs[arm])]
        if any("retrieval" in line for of in runs.values() for line in of):
            parts.append(_recall_table(runs))
    draw_heat_maps(lines, file.with_name(FIGURE_FILE))
    if (times := file.with_name(TIMES_FILE)).is_file():
        milliseconds = json.loads(times.read_text(encoding="utf-8"))
        draw_quality_by_time(lines, milliseconds, file.with_name(QUALITY_FILE))
    target = file.with_name(TABLES_FILE)
    target.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return target


def area(line: Line) -> float:
    """The mean of a run's grid of depths and dimensions on the STS tests."""
    return fmean(value for row in line["tests"].values() for value in row.values())


def at_depth(line: Line, depth: str) -> float:
    """A run's score on the STS tests at a depth and full width."""
    row = line["tests"][depth]
    return float(row[max(row, key=int)])


def _setting(line: Line) -> tuple[Any, ...]:
    """What runs that can be compared have in common; the number of steps is the last."""
    return (
        *(line["backbone"], line["corpus"], line["batch_size"], str(line["depths"])),
        line["steps"],
    )


def _by_arm(lines: Sequence[Line], setting: tuple[Any, ...]) -> dict[str, list[Line]]:
    found = [line for line in lines if _setting(line) == setting]
    return {arm: [line for line in found if line["arm"] == arm] for arm in ARMS}


def _preface(line: Line) -> str:
    return (
        f"{line['name']} distilled into its own exits {line['depths']}, {line['batch_size']} "
        f"texts of {line['corpus']} a step; all weights trained, the arms differ in the head "
        "alone. Spearman x 100, mean of the seven STS tests and of the seeds, at full width; the "
        "area is the mean over depths and dimensions. moved: the largest change of a feature's "
        "fusion weight, at the depth and in the run where it is least."
    )


def _exit_table(runs: Mapping[str, Sequence[Line]]) -> str:
    depths = sorted(
        {depth for of in runs.values() for line in of for depth in line["tests"]}, key=int
    )
    rows = [
        [ARMS[arm][0], str(len(of))]
        + (
            [f"{fmean(at_depth(line, depth) for line in of):.2f}" for depth in depths]
            if of
            else [""] * len(depths)
        )
        + [f"{fmean(map(area, of)):.2f}" if of else "not run", _movement(of)]
        for arm, of in runs.items()
    ]
    return markdown_table(
        ["", "seeds", *(f"depth {depth}" for depth in depths), "area", "moved"], rows
    )


def _movement(runs: Sequence[Line]) -> str:
    """How far a weight moved, at the depth and in the run where it was least; empty if unknown."""
    moved = _moved(runs)
    return f"{min(moved):.3f}" if moved else ""


def _moved(runs: Sequence[Line]) -> list[float]:
    return [value for run in runs for value in run.get("moved", {}).values()]


def _recall_table(runs: Mapping[str, Sequence[Line]]) -> str:
    """R@1 on packages-dev at full width; no arm or step was chosen by it."""
    scored = {arm: [line["retrieval"] for line in of] for arm, of in runs.items() if of}
    depths = sorted(next(iter(scored.values()))[0], key=int)
    rows = [
        [ARMS[arm][0], *(f"{fmean(each[depth] for each in of):.2f}" for depth in depths)]
        for arm, of in scored.items()
    ]
    return markdown_table(["R@1, packages-dev", *(f"depth {depth}" for depth in depths)], rows)


def _test_table(runs: Mapping[str, Sequence[Line]], arm: str) -> str:
    """An arm's area against those in `COMPARED`: Welch's test, Holm's correction over the table.

    Weights of the arm that moved by less than `LEAST_MOVEMENT` in a run leave all of it untested.
    """
    ours = [*map(area, runs[arm])]
    others = {each: [*map(area, runs[each])] for each in COMPARED[arm] if runs[each]}
    p_values = [_welch(ours, of) for of in others.values()]
    rows = []
    for (other, of), p in zip(others.items(), holm(p_values), strict=True):
        gain = fmean(ours) - fmean(of)
        still = min(_moved(runs[arm]), default=LEAST_MOVEMENT) < LEAST_MOVEMENT
        answer = "not tested" if p is None or still else verdict(gain, p)
        rows.append([ARMS[other][0], f"{gain:+.2f}", "" if p is None else f"{p:.3f}", answer])
    head = [f"area of {ARMS[arm][0]} against", "Δ", "p of Welch's test (Holm)", ""]
    return markdown_table(head, rows)


def _welch(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The two-sided p; None where a variance cannot be estimated."""
    if min(len(first), len(second)) < 2 or max(stdev(first), stdev(second)) < LEAST_SPREAD:
        return None
    return float(ttest_ind(first, second, equal_var=False).pvalue)


def _drawn(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The runs of one setting by arm: the one with most arms, and among these with most steps."""

    def runs_in(setting: tuple[Any, ...]) -> dict[str, list[Line]]:
        return {arm: of for arm, of in _by_arm(lines, setting).items() if of}

    settings = {_setting(line) for line in lines}
    return runs_in(max(settings, key=lambda each: (len(runs_in(each)), each[-1])))


def draw_quality_by_time(
    lines: Sequence[Line], milliseconds: Mapping[str, float], path: Path
) -> None:
    """The score of each depth over the time of a text alone there, of the runs of `_drawn`.

    Depths without a time, which a later command added, are left out.
    """
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for arm, of in _drawn(lines).items():
        depths = sorted(milliseconds.keys() & of[0]["tests"].keys(), key=int)
        scores = [fmean(at_depth(line, depth) for line in of) for depth in depths]
        axes.plot([milliseconds[depth] for depth in depths], scores, "o-", label=ARMS[arm][0])
    axes.set(xlabel="milliseconds of a text alone", ylabel="mean of the seven STS tests")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def draw_heat_maps(lines: Sequence[Line], path: Path) -> None:
    """A heat map of depth and dimension for each arm, of the runs of `_drawn`."""
    matplotlib.use("svg")
    from matplotlib import pyplot

    runs = _drawn(lines)
    depths = sorted(next(iter(runs.values()))[0]["tests"], key=int)
    widths = sorted(next(iter(runs.values()))[0]["tests"][depths[0]], key=int)
    grids = {
        arm: [
            [fmean(line["tests"][depth][width] for line in of) for width in widths]
            for depth in depths
        ]
        for arm, of in runs.items()
    }
    low = min(value for grid in grids.values() for row in grid for value in row)
    high = max(value for grid in grids.values() for row in grid for value in row)
    figure, axes = pyplot.subplots(1, len(grids), figsize=(4 * len(grids), 3), squeeze=False)
    for place, (arm, grid) in zip(axes[0], grids.items(), strict=True):
        place.imshow(grid, vmin=low, vmax=high, aspect="auto")
        place.set(title=ARMS[arm][0], xlabel="dimensions", ylabel="depth")
        place.set_xticks(range(len(widths)), widths)
        place.set_yticks(range(len(depths)), depths)
        for row, values in enumerate(grid):
            for column, value in enumerate(values):
                place.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
