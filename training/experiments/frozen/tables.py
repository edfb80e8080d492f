"""The tables of heads on a frozen backbone: means over seeds, and each arm against its controls."""

from collections.abc import Mapping
from pathlib import Path

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import WITHOUT_OVERLAP
from s2sent.training.evaluation.results.statistics import Line, compare, kept_step
from s2sent.training.evaluation.sts import AVERAGE
from s2sent.training.experiments.engine import TESTS
from s2sent.training.experiments.frozen.heads import ARMS, ENCODER_ARMS
from s2sent.training.experiments.tables import (
    GEOMETRY,
    STS,
    Cell,
    Runs,
    arms_of,
    arms_table,
    by_setting,
    comparisons_table,
    get,
    least,
    mean,
    mean_weights,
    of_each_test,
    spread,
    write_page,
)
from s2sent.training.files.jsonl import read_lines

TUNING_SEED = 0  # of the runs that choose a rate
PAIRS = "pairs_per_task"  # among a run's scores of the tests, where these were thinned
TEXTS = ("backbone", "reading", "corpus_sha256")  # of runs that are compared
# Where all runs of a table have them, in this order; the last one is what arms are compared in,
# because no step or rate is chosen by it.
SCORES = {
    **{name: get("chosen", name) for name in (WITHOUT_OVERLAP, "R@1", "MRR@10")},
    STS: get(TESTS, AVERAGE),
}
LAST_STEP = ", last step"  # where earlier versions looked at weights; scores are of the kept step


def counts(line: Line) -> bool:
    """Whether a run stands in a table: not one that chose a rate."""
    return line["seed"] != TUNING_SEED or not learns(line)


def learns(line: Line) -> bool:
    """Whether a run's arm learns anything; one that does not has no seeds, steps or rate."""
    return ARMS[line["arm"]].learns


def scored_on(runs: Runs) -> str:
    """How many pairs of the tests runs were scored on, in words. Raises `ConfigError` for two."""
    numbers = {run[TESTS].get(PAIRS, 0) for run in runs if run.get(TESTS)}
    if len(numbers) > 1:
        both = " and others on ".join(map(of_each_test, sorted(numbers)))
        raise ConfigError(f"Some runs were scored on {both}: keep them in different files.")
    return of_each_test(*numbers) if numbers else "not scored"


def comparable(lines: Runs) -> dict[str, list[Line]]:
    """The runs of each table by its title, those that chose a rate left out.

    Runs of other texts or other steps have a table of their own. Where nothing is learned there are
    no steps: the run stands in every table of its texts.
    """
    found: dict[str, list[Line]] = {}
    for texts, of_texts in by_setting(filter(counts, lines), TEXTS).items():
        of = "{}, read as {}, corpus {}".format(*texts)
        fixed = [line for line in of_texts if not learns(line)]
        learned = [{**line, **line["schedule"]} for line in of_texts if learns(line)]
        schedules = by_setting(learned, ("steps", "batch_size", "eval_every"))
        for (steps, batch, every), runs in schedules.items():
            title = f"{steps} steps of {batch} pairs, scored every {every} steps, of {of}"
            settings = {*map(_setting, runs)}
            found[title] = [*runs, *(run for run in fixed if _setting(run) in settings)]
        if not learned:
            found[f"nothing learned of {of}"] = fixed
    return found


def write_frozen_tables(file: Path, command: str) -> Path:
    """Write the tables of a file of runs beside it; returns their path."""
    tables = frozen_tables(file)
    name = Path(read_lines(file)[0]["backbone"]).name.rpartition(":")[2]
    return write_page(file.with_suffix(".md"), f"Heads on a frozen {name}", command, [tables])


def frozen_tables(file: Path) -> str:
    """Markdown: a table of scores for each depth and objective, and one of comparisons.

    Runs of other texts or steps have tables of their own. Holm's correction is over all comparisons
    of such a part. Raises `ConfigError` for a file without runs.
    """
    tables = {title: _tables(runs) for title, runs in comparable(read_lines(file)).items()}
    if not tables:
        raise ConfigError(f"{file} has no runs: run the experiment first.")
    if len(tables) == 1:
        return next(iter(tables.values()))
    return "\n\n".join(f"### {title}\n\n{of}" for title, of in tables.items())


def _setting(line: Line) -> tuple[int, str]:
    """The depth of a run and its objective, with the teacher that earlier versions followed."""
    return line["exit"], f"{line['objective']} {line.get('teacher') or ''}".strip()


def _tables(lines: Runs) -> str:
    scored_on(lines)
    parts, sides = [], []
    for depth, objective in sorted({*map(_setting, lines)}):
        of_setting = [line for line in lines if _setting(line) == (depth, objective)]
        runs = {arm: of for arm, of in arms_of(of_setting, ARMS).items() if of}
        parts.append(f"**Depth {depth}, {objective}**\n\n{_scores_table(runs)}")
        sides += _sides(f"depth {depth}, {objective}: ", runs)
    score = _shared_scores(lines)[-1]
    minus = "S2Sent minus" if all(line["arm"] in ENCODER_ARMS for line in lines) else "difference"
    return "\n\n".join([*parts, comparisons_table(minus, score, compare(sides, SCORES[score]))])


def _shared_scores(lines: Runs) -> list[str]:
    """The names of `SCORES` that every run of a table has."""
    return [n for n, score in SCORES.items() if all(score(line) is not None for line in lines)]


def _scores_table(runs: Mapping[str, Runs]) -> str:
    every = [run for of_arm in runs.values() for run in of_arm]
    names = _shared_scores(every)
    measures = [n for n in GEOMETRY if all(n in (run.get(TESTS) or {}) for run in every)]
    at = LAST_STEP if any("moved" in run for run in every if learns(run)) else ""
    columns: dict[str, Cell] = {
        "parameters": lambda of: f"{of[0]['parameters']:,}",
        "seeds": lambda of: str(len(of)) if learns(of[0]) else "nothing learned",
        "rate": lambda of: f"{of[0]['schedule']['learning_rate']:g}" if learns(of[0]) else "",
        **{name: spread(SCORES[name]) for name in names},
        **{name: spread(get(TESTS, name), ".3f") for name in measures},
        "kept steps": _kept_steps,
        f"weight change{at}": least(lambda run: run.get("weight_change", run.get("moved"))),
        f"spread over texts{at}": mean(get("spread"), ".3f"),
    }
    if STS in names and any(run["block_weights"] for run in every):
        columns[f"weights of the blocks{at}"] = mean_weights()
    return arms_table({arm: ARMS[arm].label for arm in runs}, runs, columns)


def _kept_steps(runs: Runs) -> str:
    """The first and the last kept step, and how many runs kept their initial weights."""
    if not learns(runs[0]):
        return ""
    steps = sorted(kept_step(run) or 0 for run in runs)
    initial = steps.count(0)
    return f"{steps[0]} to {steps[-1]}" + (f"; {initial} of {len(steps)} at 0" if initial else "")


def _sides(head: str, runs: Mapping[str, Runs]) -> list[tuple[str, Runs, Runs]]:
    """The arms of several seeds beside their controls, of which some learn nothing."""
    sides = []
    for arm, of_arm in runs.items():
        for control in ARMS[arm].controls if len(of_arm) > 1 else ():
            if control in runs:
                minus = "" if arm in ENCODER_ARMS else f"{ARMS[arm].label}, minus "
                label = head + minus + ARMS[control].label
                sides.append((label, of_arm, _at_seeds(runs[control], of_arm)))
    return sides


def _at_seeds(runs: Runs, like: Runs) -> Runs:
    """An arm that learns nothing has its one run for every seed of ``like``."""
    return runs if learns(runs[0]) else [{**runs[0], "seed": run["seed"]} for run in like]
