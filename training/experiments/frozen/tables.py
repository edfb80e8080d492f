"""The tables of heads on a frozen backbone: means over seeds, and each arm against its controls."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.results.statistics import Line, compare, kept_step, mean_and_spread
from s2sent.training.evaluation.sts import AVERAGE
from s2sent.training.experiments.frozen.arms import ARMS, ENCODER_ARMS
from s2sent.training.experiments.frozen.selection import TESTS, Setting, comparable, setting_of
from s2sent.training.experiments.frozen.train import CHOSEN_ON
from s2sent.training.experiments.tables import (
    Cell,
    Runs,
    arms_of,
    arms_table,
    comparisons_table,
    least,
    mean,
    mean_weights,
    values,
    write_page,
)
from s2sent.training.files.jsonl import read_lines

STS = "STS-7"  # the mean of the seven tests
# Where a run has them, in this order; the last one is what arms are compared in, because no step
# or rate is chosen by it.
SCORES = (CHOSEN_ON, "R@1", "MRR@10", STS)
GEOMETRY = ("alignment", "uniformity", "pos_over_random", "align_over_abs_uniform")
LAST_STEP = ", last step"  # where earlier versions looked at weights; scores are of the kept step


def write_frozen_tables(file: Path, command: str) -> Path:
    """Write the tables of a file of runs beside it; returns their path."""
    tables = frozen_tables(file)
    name = Path(read_lines(file)[0]["backbone"]).name.rpartition(":")[2]
    return write_page(file.with_suffix(".md"), f"Heads on a frozen {name}", command, [tables])


def frozen_tables(file: Path) -> str:
    """Markdown: a table of scores for each depth and objective, and one of comparisons.

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


def _tables(lines: Runs) -> str:
    by_setting = {setting: _runs(lines, setting) for setting in sorted({*map(setting_of, lines)})}
    parts = [
        f"**Depth {depth}, {objective}**\n\n{_scores_table(runs)}"
        for (depth, objective), runs in by_setting.items()
    ]
    score = _tested_score(lines)
    sides = [side for setting, runs in by_setting.items() for side in _sides(setting, runs)]
    found = compare(sides, lambda run: scores_of(run)[score])
    minus = "S2Sent minus" if all(line["arm"] in ENCODER_ARMS for line in lines) else "difference"
    return "\n\n".join([*parts, comparisons_table(minus, score, found)])


def _runs(lines: Runs, setting: Setting) -> dict[str, list[Line]]:
    """The runs of each arm, by seed."""
    found = arms_of([line for line in lines if setting_of(line) == setting], ARMS)
    return {arm: runs for arm, runs in found.items() if runs}


def scores_of(run: Line) -> dict[str, float]:
    """The scores of a run at its kept step, those of the tests once they were scored."""
    tests = run.get(TESTS) or {}
    known = {name: run["chosen"][name] for name in SCORES if name in run["chosen"]}
    geometry = {name: tests[name] for name in GEOMETRY if name in tests}
    return known | ({STS: tests[AVERAGE]} if tests else {}) | geometry


def _scores_table(runs: Mapping[str, Runs]) -> str:
    every = [run for of_arm in runs.values() for run in of_arm]
    names = [n for n in scores_of(every[0]) if all(n in scores_of(run) for run in every)]
    at = LAST_STEP if any("moved" in run for run in every if _learns(run)) else ""
    columns: dict[str, Cell] = {
        "parameters": lambda of: f"{of[0]['parameters']:,}",
        "seeds": lambda of: str(len(of)) if _learns(of[0]) else "nothing learned",
        "rate": lambda of: f"{of[0]['schedule']['learning_rate']:g}" if _learns(of[0]) else "",
        **{name: _score(name) for name in names},
        "kept steps": _kept_steps,
        f"weight change{at}": least(lambda run: run.get("weight_change", run.get("moved"))),
        f"spread over texts{at}": mean(lambda run: run["spread"], ".3f"),
    }
    if STS in names and any(run["block_weights"] for run in every):
        columns[f"weights of the blocks{at}"] = mean_weights()
    return arms_table({arm: ARMS[arm].label for arm in runs}, runs, columns)


def _learns(run: Line) -> bool:
    return ARMS[run["arm"]].learns


def _score(name: str) -> Cell:
    form = ".3f" if name in GEOMETRY else ".2f"
    return lambda runs: mean_and_spread(values(runs, lambda run: scores_of(run)[name]), form)


def _kept_steps(runs: Runs) -> str:
    """The first and the last kept step, and how many runs kept their initial weights."""
    if not _learns(runs[0]):
        return ""
    steps = sorted(kept_step(run) or 0 for run in runs)
    initial = steps.count(0)
    return f"{steps[0]} to {steps[-1]}" + (f"; {initial} of {len(steps)} at 0" if initial else "")


def _sides(setting: Setting, runs: Mapping[str, Sequence[Line]]) -> list[tuple[str, Runs, Runs]]:
    """The arms of several seeds beside their controls, of which some learn nothing."""
    head = f"depth {setting[0]}, {setting[1]}: "
    return [
        (head + _compared(arm, control), of_arm, _at_seeds(runs[control], of_arm))
        for arm, of_arm in runs.items()
        if len(of_arm) > 1
        for control in ARMS[arm].controls
        if control in runs
    ]


def _at_seeds(runs: Runs, like: Runs) -> Runs:
    """An arm that learns nothing has its one run for every seed of ``like``."""
    return runs if _learns(runs[0]) else [{**runs[0], "seed": run["seed"]} for run in like]


def _compared(arm: str, control: str) -> str:
    if arm in ENCODER_ARMS:
        return ARMS[control].label
    return f"{ARMS[arm].label}, minus {ARMS[control].label}"


def _tested_score(lines: Runs) -> str:
    """The last of `SCORES` that every run of a table has."""
    return next(n for n in reversed(SCORES) if all(n in scores_of(line) for line in lines))
