"""The tables of heads on a frozen backbone: means over seeds, and each arm against its controls."""

from collections.abc import Mapping

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.development import WITHOUT_OVERLAP
from s2sent.training.evaluation.results.statistics import Line, compare, kept_step
from s2sent.training.evaluation.sts import AVERAGE
from s2sent.training.experiments.engine import TESTS
from s2sent.training.experiments.frozen.heads import ARMS, ENCODER_ARMS
from s2sent.training.experiments.tables import (
    STS,
    Cell,
    Runs,
    arms_of,
    arms_table,
    by_setting,
    comparisons_table,
    get,
    of_each_test,
    spread,
)

TUNING_SEED = 0  # of the runs that choose a rate
PAIRS = "pairs_per_task"  # among a run's scores of the tests, where these were thinned
# Of runs that are compared. A run that learns nothing has no steps of its own.
SETTING = ("backbone", "reading", "corpus_sha256", "eval_every", "batch_size")
# Where all runs of a table have them, in this order; the last one is what arms are compared in,
# because no step or rate is chosen by it.
SCORES = {
    **{name: get("chosen", name) for name in (WITHOUT_OVERLAP, "R@1", "MRR@10")},
    STS: get(TESTS, AVERAGE),
}


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


def frozen_tables(lines: Runs) -> str:
    """Markdown: a table of scores for each depth and objective, and one of comparisons.

    Runs of other texts or another schedule have tables of their own. Holm's correction is over all
    comparisons of such a part.
    """
    runs = [{**line["schedule"], **line} for line in lines if counts(line)]
    tables = {
        f"{backbone}, corpus {corpus}, scored every {every} steps of {batch} pairs": _tables(of)
        for (backbone, _, corpus, every, batch), of in by_setting(runs, SETTING).items()
    }
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
    columns: dict[str, Cell] = {
        "parameters": lambda of: f"{of[0]['parameters']:,}",
        "seeds": lambda of: str(len(of)) if learns(of[0]) else "nothing learned",
        "rate": lambda of: f"{of[0]['schedule']['learning_rate']:g}" if learns(of[0]) else "",
        **{name: spread(SCORES[name]) for name in _shared_scores(every)},
        "kept steps": _kept_steps,
    }
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
