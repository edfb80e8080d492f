"""The tables of the twin experiment: means over seeds, and each arm against the summed control."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import ALL_PAIRS, WITHOUT_OVERLAP
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.statistics import holm, mean_and_spread, paired, verdict
from s2sent.training.evaluation.sts import TASKS
from s2sent.training.experiments.twins.plan import ARMS, CONTROL
from s2sent.training.files.jsonl import read_lines

KEY = ("plan", "corpus_sha256", "part", "selector", "seed", "arm")  # what a line is the result of
LEAST_TURN = 0.01  # mean of 1 - cosine; below it an arm is still its start
TABLES_FILE = "jtcse.md"

Line = Mapping[str, Any]
Value = Callable[[Line], float | None]
Runs = Mapping[str, Sequence[Line]]  # by arm


def write_twin_tables(file: Path) -> Path:
    """Write the tables of a file of results beside it; returns their path.

    Raises `ConfigError` for a file without results, or with those of several plans.
    """
    lines = read_lines(file)
    if not lines:
        raise ConfigError(f"{file} has no results: run the experiment first.")
    plan = lines[0]["plan"]
    if any(line["plan"] != plan for line in lines):
        raise ConfigError(
            f"{file} holds results of several plans, which cannot be compared: keep one backbone, "
            "number of steps and corpus in a folder."
        )
    parts = [f"# Twins on {plan['backbone']}", _preface(plan)]
    for selector, title in ((False, "Without selectors"), (True, "A selector in each tower")):
        parts += [
            f"## {title}",
            *_section([line for line in lines if line["selector"] == selector]),
        ]
    target = file.with_name(TABLES_FILE)
    target.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return target


def _preface(plan: Mapping[str, Any]) -> str:
    return (
        f"{plan['steps']} steps of {plan['batch_size']} texts for each tower, then "
        f"{plan['steps']} steps of {plan['batch_size']} pairs for every arm; learning rate "
        f"{plan['learning_rate']:g}, {plan['precision']}. Scores are Spearman x 100, mean ± "
        f"standard deviation over n seeds. Δ is to two SimCSE towers summed, by seeds, p with "
        "Holm's correction over a table. An arm whose embeddings moved by less than "
        f"{LEAST_TURN:g} (mean of 1 - cosine) since its start is not tested."
    )


def _section(lines: Sequence[Line]) -> list[str]:
    if not lines:
        return ["Not run."]
    development = _by_arm(lines, "development")
    still = {arm for arm, runs in development.items() if any(map(_is_still, runs))}
    chosen_on = _get("development", WITHOUT_OVERLAP)
    found = ["Development data:", _table(development, DEVELOPMENT, chosen_on, still)]
    tests = _by_arm(lines, "tests")
    if not tests:
        return [*found, "The seven STS tests: not run."]
    return [*found, "The seven STS tests:", _table(tests, TESTS, _get("scores", "average"), still)]


def _by_arm(lines: Sequence[Line], part: str) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for arm in ARMS:
        runs = [line for line in lines if (line["part"], line["arm"]) == (part, arm)]
        if runs:
            found[arm] = sorted(runs, key=lambda run: int(run["seed"]))
    return found


def _get(*path: str) -> Value:
    def get(line: Line) -> float | None:
        value: Any = line
        for key in path:
            value = value[key]
        return None if value is None else float(value)

    return get


DEVELOPMENT = (
    (ALL_PAIRS, _get("development", ALL_PAIRS), ".2f"),
    (WITHOUT_OVERLAP, _get("development", WITHOUT_OVERLAP), ".2f"),
    ("alignment", _get("geometry", "alignment"), ".3f"),
    ("uniformity", _get("geometry", "uniformity"), ".3f"),
    ("E_CLS", _get("first_token_norm"), ".3f"),
    ("moved", _get("moved"), ".3f"),
    ("fusion weight moved", _get("max_weight_moved"), ".3f"),
)
TESTS = tuple((task, _get("scores", task), ".2f") for task in (*TASKS, "average"))


def _table(
    runs: Runs, columns: Sequence[tuple[str, Value, str]], tested: Value, still: set[str]
) -> str:
    """One row an arm; the control is what the others are tested against, but for ``still``."""
    control = _by_seed(runs.get(CONTROL, ()), tested)
    compared = {
        arm: paired(_by_seed(of_arm, tested), control)
        for arm, of_arm in runs.items()
        if arm != CONTROL
    }
    p_values = [
        of_arm.p if of_arm is not None and not {arm, CONTROL} & still else None
        for arm, of_arm in compared.items()
    ]
    adjusted = dict(zip(compared, holm(p_values), strict=True))
    rows = []
    for arm, of_arm in runs.items():
        cells = [_cell(of_arm, value, form) for _, value, form in columns]
        difference, p = compared.get(arm), adjusted.get(arm)
        answer = "" if difference is None else verdict(difference.mean, p)
        rows.append(
            [
                *(ARMS[arm][0], str(len(of_arm)), *cells),
                "" if difference is None else f"{difference.mean:+.2f}",
                "" if p is None else f"{p:.3f}",
                "not tested" if answer and {arm, CONTROL} & still else answer,
            ]
        )
    return markdown_table(["", "n", *(name for name, _, _ in columns), "Δ", "p", ""], rows)


def _by_seed(runs: Sequence[Line], value: Value) -> dict[int, float]:
    found = {int(run["seed"]): value(run) for run in runs}
    return {seed: number for seed, number in found.items() if number is not None}


def _cell(runs: Sequence[Line], value: Value, form: str) -> str:
    return mean_and_spread([number for number in map(value, runs) if number is not None], form)


def _is_still(run: Line) -> bool:
    return bool(run["moved"] < LEAST_TURN)
