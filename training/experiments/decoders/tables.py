"""The tables and the figure of the decoder experiment, from its two files of results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.statistics import (
    holm,
    mean_and_spread,
    p_value,
    paired,
    verdict,
)
from s2sent.training.evaluation.sts import AVERAGE
from s2sent.training.experiments.decoders.plan import LORA_ARMS, OURS
from s2sent.training.experiments.paper.plots import save
from s2sent.training.files.jsonl import read_lines
from s2sent.training.frozen.arms import ARMS
from s2sent.training.frozen.selection import TESTS, comparable, pairs_scored
from s2sent.training.frozen.tables import GEOMETRY, STS, frozen_tables, has_moved, least_moved
from s2sent.training.frozen.train import CHOSEN_ON

FROZEN_FILE, LORA_FILE = "sfp.jsonl", "sfp-lora.jsonl"  # in the folder of a backbone's results
TABLES_FILE, FIGURE_FILE = "sfp.md", "sfp.svg"
DRAWN = "contrastive"  # the objective whose weights are drawn

Line = Mapping[str, Any]
Runs = Mapping[str, Sequence[Line]]  # by arm


def write_decoder_tables(folder: Path) -> Path:
    """Write tables and figure beside the results in ``folder``; returns the tables' path.

    Raises `ConfigError` for a folder without results.
    """
    frozen = folder / FROZEN_FILE
    lines, lora = read_lines(frozen), read_lines(folder / LORA_FILE)
    if not lines and not lora:
        raise ConfigError(f"{folder} has no results: run the experiment first.")
    parts = [f"# Heads on {folder.name}"]
    if lines:
        parts += ["## On the frozen backbone", _pairs_scored(lines), frozen_tables(frozen)]
    if figure := weights_figure(lines):
        save(figure, folder / FIGURE_FILE)
        parts.append(f"![The weight of each block, by arm]({FIGURE_FILE})")
    if lora:
        parts += ["## With low-rank updates", *lora_tables(lora)]
    target = folder / TABLES_FILE
    target.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return target


def _pairs_scored(lines: Sequence[Line]) -> str:
    numbers = sorted({number for number in map(pairs_scored, lines) if number is not None})
    if not numbers:
        return f"{STS}: not opened."
    return f"{STS}: {' and '.join(map(_of_each, numbers))}."


def _of_each(count: int) -> str:
    return f"{count} pairs of each test" if count else "all pairs of the seven tests"


def weights_figure(lines: Sequence[Line]) -> Figure | None:
    """The mean weight of each block over texts, features and seeds; None where nothing learns.

    They are of runs that can be compared: of most arms, and among these of most steps.
    """
    tables = comparable(lines).values()
    drawn = max(tables, default=[], key=lambda runs: (len(_arms(runs)), _steps(runs)))
    by_arm: dict[str, list[list[float]]] = {}
    for line in drawn:
        if line["objective"] == DRAWN and line["block_weights"]:
            by_arm.setdefault(line["arm"], []).append(line["block_weights"])
    if not by_arm:
        return None
    last = lines[0]["exit"]
    matplotlib.use("svg")
    figure = Figure(figsize=(8, 0.8 + 0.42 * len(by_arm)), layout="constrained")
    axes = figure.subplots()
    deepest = max(len(runs[0]) for runs in by_arm.values())
    for row, runs in enumerate(by_arm.values()):
        for back, weights in enumerate(zip(*(reversed(run) for run in runs), strict=True)):
            place, weight = last - back, fmean(weights)
            axes.scatter(place, row, s=900 * weight, color="tab:blue", alpha=0.6)
            axes.annotate(f"{weight:.2f}", (place, row), ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(by_arm)), [ARMS[arm].label for arm in by_arm], fontsize=8)
    axes.set_ylim(len(by_arm) - 0.4, -0.6)
    axes.set_xticks(range(last - deepest + 1, last + 1))
    axes.set_xlabel("block")
    return figure


def _arms(runs: Sequence[Line]) -> set[str]:
    return {line["arm"] for line in runs}


def _steps(runs: Sequence[Line]) -> int:
    return max((int(line["schedule"]["steps"]) for line in runs), default=0)


def lora_tables(lines: Sequence[Line]) -> list[str]:
    """For each length of run a table of scores, and S2Sent against every other arm by seeds."""
    parts = []
    for setting in sorted({_setting(line) for line in lines}):
        runs = _by_arm([line for line in lines if _setting(line) == setting])
        steps, batch, pairs, tested, bf16 = setting
        precision = "bfloat16" if bf16 else "float32"
        parts += [
            f"{steps} steps of {batch} pairs (of {pairs}), rank 16, in {precision};"
            f" {_of_each(tested)}.",
            _scores_table(runs),
            _tests_table(runs),
        ]
    return parts


def _setting(line: Line) -> tuple[int, int, int, int, bool]:
    names = ("steps", "batch_size", "pairs", "pairs_per_task", "bf16")
    steps, batch, pairs, tested, bf16 = (line[name] for name in names)
    return steps, batch, pairs, tested, bf16


def _by_arm(lines: Sequence[Line]) -> dict[str, list[Line]]:
    return {arm: [line for line in lines if line["arm"] == arm] for arm in LORA_ARMS}


def _scores_table(runs: Runs) -> str:
    head = ["", "seeds", CHOSEN_ON, STS, *GEOMETRY, "minutes", "moved", "weights of the blocks"]
    rows = [
        [LORA_ARMS[arm][0], *(_scores_row(of) if of else ["not run", *[""] * (len(head) - 2)])]
        for arm, of in runs.items()
    ]
    return markdown_table(head, rows)


def _scores_row(runs: Sequence[Line]) -> list[str]:
    weights = [line["block_weights"] for line in runs]
    seconds = [line["seconds_training"] for line in runs if line["seconds_training"] is not None]
    return [
        str(len(runs)),
        mean_and_spread([line[CHOSEN_ON] for line in runs]),
        mean_and_spread([line[TESTS][AVERAGE] for line in runs]),
        *(mean_and_spread([line[TESTS][name] for line in runs], ".3f") for name in GEOMETRY),
        f"{fmean(seconds) / 60:.0f}" if seconds else "",  # an interrupted run has none
        least_moved(runs),
        " ".join(f"{fmean(of):.2f}" for of in zip(*weights, strict=True)) if all(weights) else "",
    ]


def _tests_table(runs: Runs) -> str:
    """The t-test by seeds of S2Sent minus each other arm, Holm's correction over the arms.

    Arms whose fusion weights have not moved have a difference and no test.
    """
    ours = _by_seed(runs[OURS])
    found = {
        arm: paired(ours, _by_seed(of)) for arm, of in runs.items() if arm != OURS and of and ours
    }
    compared = {arm: of for arm, of in found.items() if of is not None}
    moved = {arm: has_moved([*runs[OURS], *runs[arm]]) for arm in compared}
    p_values = holm([of.p if moved[arm] else None for arm, of in compared.items()])
    rows = []
    for (arm, of), p in zip(compared.items(), p_values, strict=True):
        answer = "no test of one seed" if p is None else verdict(of.mean, p)
        tested = [p_value(p), answer] if moved[arm] else ["", "not tested"]
        rows.append([LORA_ARMS[arm][0], str(len(of.differences)), f"{of.mean:+.2f}", *tested])
    return markdown_table([f"{LORA_ARMS[OURS][0]}, minus", "pairs", STS, "p (Holm)", ""], rows)


def _by_seed(runs: Sequence[Line]) -> dict[int, float]:
    return {line["seed"]: line[TESTS][AVERAGE] for line in runs}
