"""The tables of a frozen experiment: means over seeds, and S2Sent against each control."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.statistics import (
    LEAST_MOVEMENT,
    LEVEL,
    PairedDifference,
    equivalence,
    holm,
    mean_and_spread,
    p_value,
    paired,
    verdict,
)
from s2sent.training.evaluation.sts import AVERAGE
from s2sent.training.files.jsonl import read_lines
from s2sent.training.frozen.arms import ARMS, ENCODER_ARMS
from s2sent.training.frozen.selection import TESTS, Line, Setting, comparable, setting_of
from s2sent.training.frozen.train import CHOSEN_ON

STS = "STS-7"  # the mean of the seven tests
# Where a run has them, in this order; the last one is what arms are compared in, because no step
# or rate is chosen by it.
SCORES = (CHOSEN_ON, "R@1", "MRR@10", STS)
GEOMETRY = ("alignment", "uniformity", "pos_over_random", "align_over_abs_uniform")
MARGIN = 0.5  # points; a difference within it counts as none


def frozen_tables(file: Path) -> str:
    """Markdown: a table of scores for each exit and objective, and one of comparisons.

    Runs of other texts, steps or rates have tables of their own. Holm's correction is over all
    comparisons of such a part. Raises `ConfigError` for a file without runs.
    """
    parts = comparable(read_lines(file))
    if not parts:
        raise ConfigError(f"{file} has no runs: run the experiment first.")
    tables = [_tables(runs) for runs in parts.values()]
    if len(parts) == 1:
        return tables[0]
    return "\n\n".join(f"### {title}\n\n{of}" for title, of in zip(parts, tables, strict=True))


def _tables(lines: Sequence[Line]) -> str:
    settings = sorted({*map(setting_of, lines)})
    parts: list[str] = []
    for setting in settings:
        runs = _runs(lines, setting)
        parts += [f"**Exit {setting[0]}, {setting[1]}**", _scores_table(runs)]
    return "\n\n".join([*parts, _comparisons_table(lines, settings)])


def _runs(lines: Sequence[Line], setting: Setting) -> dict[str, list[Line]]:
    """The runs of each arm, by seed."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        if setting_of(line) == setting:
            found.setdefault(line["arm"], []).append(line)
    return {arm: sorted(found[arm], key=lambda run: run["seed"]) for arm in ARMS if arm in found}


def _scores(run: Line) -> dict[str, float]:
    """The scores of a run at its chosen step, those of the tests once they are open."""
    tests = run.get(TESTS) or {}
    opened = {STS: tests[AVERAGE]} if tests else {}
    geometry = {name: tests[name] for name in GEOMETRY if name in tests}
    return (
        {name: run["chosen"][name] for name in SCORES if name in run["chosen"]} | opened | geometry
    )


def _scores_table(runs: Mapping[str, Sequence[Line]]) -> str:
    found = [_scores(run) for of_arm in runs.values() for run in of_arm]
    names = [name for name in found[0] if all(name in scores for scores in found)]
    head = ["", "parameters", "seeds", "rate", *names, "best steps", "moved", "spread over texts"]
    weights = any(run["block_weights"] for of_arm in runs.values() for run in of_arm)
    last = ["weights of the blocks"] if weights and STS in names else []
    rows = (_scores_row(arm, of_arm, names, bool(last)) for arm, of_arm in runs.items())
    return markdown_table([*head, *last], rows)


def _scores_row(
    arm: str, runs: Sequence[Line], names: Sequence[str], with_weights: bool
) -> list[str]:
    first = runs[0]
    scores = [
        mean_and_spread([_scores(run)[name] for run in runs], ".3f" if name in GEOMETRY else ".2f")
        for name in names
    ]
    start = [ARMS[arm].label, f"{first['parameters']:,}"]
    weights = [_mean_weights(runs)] if with_weights else []
    if not ARMS[arm].learns:
        return [*start, "nothing learned", "", *scores, "", "", "", *weights]
    steps = sorted(run["step"] for run in runs)
    at_start = steps.count(0)
    chosen = f"{steps[0]} to {steps[-1]}" + (f"; {at_start} at the start" if at_start else "")
    return [
        *(*start, str(len(runs)), f"{first['schedule']['learning_rate']:g}", *scores, chosen),
        least_moved(runs),
        "" if first["spread"] is None else f"{fmean(run['spread'] for run in runs):.3f}",
        *weights,
    ]


def _mean_weights(runs: Sequence[Line]) -> str:
    """The mean weight of each block at the end, the oldest first."""
    if not runs[0]["block_weights"]:
        return ""
    by_block = zip(*(run["block_weights"] for run in runs), strict=True)
    return " ".join(f"{fmean(weights):.2f}" for weights in by_block)


def least_moved(runs: Sequence[Line]) -> str:
    """The least movement of fusion weights among runs; empty for heads without weights."""
    moved = [run["moved"] for run in runs if run.get("moved") is not None]
    if not moved:
        return ""
    return f"{min(moved):.3f}" + ("" if has_moved(runs) else " (not tested)")


def has_moved(runs: Sequence[Line]) -> bool:
    """Whether every run's fusion weights, where it has any, moved by `LEAST_MOVEMENT`."""
    moved = (run.get("moved") for run in runs)
    return all(each is None or each >= LEAST_MOVEMENT for each in moved)


def _comparisons_table(lines: Sequence[Line], settings: Sequence[Setting]) -> str:
    """Each arm minus its controls, in the score that nothing was chosen by."""
    tested = _tested_score(lines)
    compared: list[tuple[str, PairedDifference, bool]] = []
    for setting in settings:
        runs = _runs(lines, setting)
        for arm, control in _pairs_of(runs):
            ours, theirs = runs[arm], runs[control]
            found = paired(_by_seed(ours, tested), _by_seed(theirs, tested, like=ours))
            if found is not None:
                label = f"exit {setting[0]}, {setting[1]}: {_compared(arm, control)}"
                compared.append((label, found, has_moved([*ours, *theirs])))
    p_values = holm([found.p if moved else None for _, found, moved in compared])
    rows = [_comparison(*each, p) for each, p in zip(compared, p_values, strict=True)]
    minus = "S2Sent minus" if all(line["arm"] in ENCODER_ARMS for line in lines) else "difference"
    head = [minus, "pairs", tested, "95 %", "p (Holm)", "", f"within ± {MARGIN:g}, p"]
    return markdown_table(head, rows)


def _comparison(label: str, found: PairedDifference, moved: bool, p: float | None) -> list[str]:
    """A row; a comparison of weights that have not moved has a difference and no test."""
    interval = "" if found.low is None else f"{found.low:+.2f} to {found.high:+.2f}"
    row = [label, str(len(found.differences)), f"{found.mean:+.2f}", interval]
    if not moved:
        return [*row, "", "not tested", ""]
    alike = equivalence(found.differences, MARGIN)
    shown = " (shown)" if alike is not None and alike < LEVEL else ""
    return [*row, p_value(p), verdict(found.mean, p), p_value(alike) + shown]


def _pairs_of(runs: Mapping[str, Sequence[Line]]) -> list[tuple[str, str]]:
    """The arms that are compared, and with which controls."""
    return [
        (arm, control)
        for arm, of_arm in runs.items()
        if len(of_arm) > 1
        for control in ARMS[arm].controls
        if control in runs
    ]


def _compared(arm: str, control: str) -> str:
    if arm in ENCODER_ARMS:
        return ARMS[control].label
    return f"{ARMS[arm].label}, minus {ARMS[control].label}"


def _tested_score(lines: Sequence[Line]) -> str:
    """The last of `SCORES` that every run of a table has."""
    return next(name for name in reversed(SCORES) if all(name in _scores(line) for line in lines))


def _by_seed(runs: Sequence[Line], score: str, *, like: Sequence[Line] = ()) -> dict[int, float]:
    """Scores by seed; an arm that learns nothing has its one score for the seeds of ``like``."""
    if like and not ARMS[runs[0]["arm"]].learns:
        return {run["seed"]: _scores(runs[0])[score] for run in like}
    return {run["seed"]: _scores(run)[score] for run in runs}
