"""The tables of a frozen experiment: means over seeds, and S2Sent against each control."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from training.errors import ConfigError
from training.evaluation.markdown import markdown_table
from training.evaluation.statistics import LEVEL, equivalence, holm, paired, verdict
from training.frozen.arms import ARMS, S2SENT
from training.frozen.experiment import TUNING_SEED
from training.frozen.train import CHOSEN_ON
from training.jsonl import read_lines

TESTED = "MRR@10"  # no step or rate is chosen by it
SCORES = (CHOSEN_ON, "R@1", TESTED)
LEAST_MOVEMENT = 0.05  # of a fusion weight; below it a run says nothing about the weights
MARGIN = 0.5  # points; a difference within it counts as none

Line = Mapping[str, Any]
Key = tuple[int, str]  # exit, objective


def frozen_tables(file: Path) -> str:
    """Markdown: a table of scores for each exit and objective, and one of comparisons.

    Holm's correction is over all comparisons. Raises `ConfigError` for a file without runs.
    """
    lines = read_lines(file)
    if not lines:
        raise ConfigError(f"{file} has no runs: run the experiment first.")
    settings = sorted({(line["exit"], line["objective"]) for line in lines})
    parts = []
    for setting in settings:
        runs = _runs(lines, setting)
        parts += [f"**Exit {setting[0]}, {setting[1]}**", _scores_table(runs)]
    return "\n\n".join([*parts, _comparisons_table(lines, settings)])


def _runs(lines: Iterable[Line], setting: Key) -> dict[str, list[Line]]:
    """The runs of each arm, by seed: the tuning seed's only where nothing is learned."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        counts = line["seed"] != TUNING_SEED or not ARMS[line["arm"]].learns
        if (line["exit"], line["objective"]) == setting and counts:
            found.setdefault(line["arm"], []).append(line)
    return {arm: sorted(found[arm], key=lambda run: run["seed"]) for arm in ARMS if arm in found}


def _scores_table(runs: Mapping[str, Sequence[Line]]) -> str:
    head = ["", "parameters", "seeds", "rate", *SCORES, "best steps", "moved", "spread over texts"]
    return markdown_table(head, (_scores_row(arm, of_arm) for arm, of_arm in runs.items()))


def _scores_row(arm: str, runs: Sequence[Line]) -> list[str]:
    first = runs[0]
    scores = [_mean_and_spread([run["chosen"][name] for run in runs]) for name in SCORES]
    start = [ARMS[arm].label, f"{first['parameters']:,}"]
    if not ARMS[arm].learns:
        return [*start, "nothing learned", "", *scores, "", "", ""]
    steps = sorted(run["step"] for run in runs)
    at_start = steps.count(0)
    chosen = f"{steps[0]} to {steps[-1]}" + (f"; {at_start} at the start" if at_start else "")
    return [
        *(*start, str(len(runs)), f"{first['schedule']['learning_rate']:g}", *scores, chosen),
        _movement(runs),
        "" if first["spread"] is None else f"{fmean(run['spread'] for run in runs):.3f}",
    ]


def _movement(runs: Sequence[Line]) -> str:
    moved = [run["moved"] for run in runs if run["moved"] is not None]
    if not moved:
        return ""
    return f"{min(moved):.3f}" + (" (not tested)" if min(moved) < LEAST_MOVEMENT else "")


def _mean_and_spread(values: Sequence[float]) -> str:
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread}"


def _comparisons_table(lines: Sequence[Line], settings: Sequence[Key]) -> str:
    """S2Sent minus each control in the score that nothing was chosen by."""
    rows, p_values = [], []
    for setting in settings:
        runs = _runs(lines, setting)
        ours = runs.get(S2SENT.name, [])
        for control, theirs in runs.items():
            if control != S2SENT.name and len(ours) > 1:
                found = paired(_by_seed(ours), _by_seed(theirs, like=ours))
                if found is not None:
                    rows.append((setting, control, found, _tested(ours) and _tested(theirs)))
                    p_values.append(found.p)
    cells = []
    for (setting, control, found, moved), p in zip(rows, holm(p_values), strict=True):
        interval = "" if found.low is None else f"{found.low:+.2f} to {found.high:+.2f}"
        alike = equivalence(found.differences, MARGIN)
        label = f"exit {setting[0]}, {setting[1]}: {ARMS[control].label}"
        answer = verdict(found.mean, p) if moved else "not tested"
        cells.append(
            [label, str(len(found.differences)), f"{found.mean:+.2f}", interval]
            + [_p(p), answer, _p(alike) + (" (shown)" if (alike or 1) < LEVEL else "")]
        )
    head = ["S2Sent minus", "pairs", f"{TESTED}", "95 %", "p (Holm)", "", f"within ± {MARGIN:g}, p"]
    return markdown_table(head, cells)


def _tested(runs: Sequence[Line]) -> bool:
    return all(run["moved"] is None or run["moved"] >= LEAST_MOVEMENT for run in runs)


def _by_seed(runs: Sequence[Line], *, like: Sequence[Line] = ()) -> dict[int, float]:
    """Scores by seed; an arm that learns nothing has its one score for the seeds of ``like``."""
    if like and not ARMS[runs[0]["arm"]].learns:
        return {run["seed"]: runs[0]["chosen"][TESTED] for run in like}
    return {run["seed"]: run["chosen"][TESTED] for run in runs}


def _p(value: float | None) -> str:
    return "no test" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
