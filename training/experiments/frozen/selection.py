"""Which runs of a file of results stand in its tables, and which of them can be compared.

A file may hold runs of several backbones, lengths and rates: those with all of this in common are
compared, and the others have tables of their own.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from s2sent.training.evaluation.results.statistics import Line
from s2sent.training.experiments.frozen.arms import ARMS
from s2sent.training.experiments.frozen.run import TUNING_SEED
from s2sent.training.experiments.frozen.train import CHOSEN_ON

TESTS = "tests"  # in a run's line: task or measure to value
PAIRS = "pairs_per_task"  # among them, where the tests were thinned

Setting = tuple[int, str]  # depth, objective


def counts(line: Line) -> bool:
    """Whether a run stands in a table: not one that chose a rate."""
    return line["seed"] != TUNING_SEED or not learns(line)


def learns(line: Line) -> bool:
    """Whether a run's arm learns anything; one that does not has no seeds, steps or rate."""
    return ARMS[line["arm"]].learns


def setting_of(line: Line) -> Setting:
    """The depth of a run and its objective, with the teacher that is followed."""
    followed = f"teacher {line['teacher']}" if line.get("teacher") else str(line["objective"])
    return line["exit"], followed


def pairs_scored(line: Line) -> int | None:
    """How many pairs of each test a run was scored on, 0 for all; None where it was not."""
    return line[TESTS].get(PAIRS, 0) if line.get(TESTS) else None


@dataclass(frozen=True)
class _Experiment:
    """What runs that are compared have in common; ``rate`` is None where seed 0 chose it."""

    texts: str
    steps: int
    batch_size: int
    eval_every: int
    rate: float | None
    pairs: int | None = None  # scored of each test; 0 is all, None where none was

    @property
    def title(self) -> str:
        return f"{self.steps} steps of {self.batch_size} pairs, {self.texts}"

    @property
    def details(self) -> tuple[str, ...]:
        """What a title says too, where experiments of one title differ in it."""
        return (
            f"scored every {self.eval_every} steps",
            "rates chosen by seed 0" if self.rate is None else f"rate {self.rate:g}",
            "not scored on the tests"
            if self.pairs is None
            else f"{self.pairs or 'all'} pairs of each test",
        )


def comparable(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The runs of each table by its title, those that chose a rate left out.

    Of an arm whose rate seed 0 chose only the runs at that rate are in it. Where nothing is learned
    there are no steps: the run belongs to every experiment that learns at its depth, once.
    """
    found: dict[_Experiment, list[Line]] = {}
    chosen = _chosen_rates(lines)
    for line in (line for line in lines if learns(line) and counts(line)):
        rate = line["schedule"]["learning_rate"]
        if chosen.get(_series(line), rate) == rate:
            own = None if _series(line) in chosen else rate
            found.setdefault(_experiment(line, own), []).append(line)
    fixed = [line for line in lines if not learns(line)]
    if not found:
        return {"": _once(fixed, None)} if fixed else {}
    split = _by_pairs_scored(found)
    titles = _titles([*split])
    return {
        titles[experiment]: [*runs, *_fixed_beside(runs, fixed, experiment.pairs)]
        for experiment, runs in split.items()
    }


def _series(line: Line) -> tuple[Any, ...]:
    """What the runs of an arm that differ in their seed and rate have in common."""
    return _experiment(line, None), setting_of(line), line["arm"]


def _experiment(line: Line, rate: float | None) -> _Experiment:
    schedule = line["schedule"]
    steps, batch_size, every = (schedule[name] for name in ("steps", "batch_size", "eval_every"))
    return _Experiment(_texts(line), steps, batch_size, every, rate)


def _texts(line: Line) -> str:
    read = json.dumps([line["backbone"], line.get("reading")])
    reading = hashlib.sha256(read.encode()).hexdigest()[:8]
    return f"corpus {line['corpus_sha256'][:8]}, read as {reading}"


def _chosen_rates(lines: Sequence[Line]) -> dict[tuple[Any, ...], float]:
    """The rate of each series that seed 0 chose, among those that other seeds were run with."""
    run = {(_series(line), line["schedule"]["learning_rate"]) for line in lines if counts(line)}
    best: dict[tuple[Any, ...], Line] = {}
    for line in (line for line in lines if not counts(line)):
        series = _series(line)
        if (series, line["schedule"]["learning_rate"]) not in run:
            continue
        if series not in best or line["chosen"][CHOSEN_ON] > best[series]["chosen"][CHOSEN_ON]:
            best[series] = line
    return {series: line["schedule"]["learning_rate"] for series, line in best.items()}


def _by_pairs_scored(found: Mapping[_Experiment, list[Line]]) -> dict[_Experiment, list[Line]]:
    """The experiments, of which runs that were scored on other numbers of pairs are apart."""
    split: dict[_Experiment, list[Line]] = {}
    for experiment, runs in found.items():
        numbers = {number for number in map(pairs_scored, runs) if number is not None}
        for line in runs:
            own = pairs_scored(line) if len(numbers) > 1 else next(iter(numbers), None)
            split.setdefault(replace(experiment, pairs=own), []).append(line)
    return split


def _titles(experiments: Sequence[_Experiment]) -> dict[_Experiment, str]:
    """A title each, with the details in which it differs from another of the same title."""
    found = {}
    for each in experiments:
        alike = [other.details for other in experiments if other.title == each.title]
        differ = [len(set(column)) > 1 for column in zip(*alike, strict=True)]
        details = (text for text, shown in zip(each.details, differ, strict=True) if shown)
        found[each] = ", ".join([each.title, *details])
    return found


def _fixed_beside(runs: Sequence[Line], fixed: Sequence[Line], scored: int | None) -> list[Line]:
    """The runs that learn nothing on the texts and at the depths of ``runs``; as `_once`."""
    asked = {(_texts(line), setting_of(line)) for line in runs}
    beside = [line for line in fixed if (_texts(line), setting_of(line)) in asked]
    return _once(beside, scored)


def _once(fixed: Sequence[Line], scored: int | None) -> list[Line]:
    """One run of each arm: scored on so many pairs, else one that was not scored on the tests."""
    found: dict[tuple[Any, ...], Line] = {}
    for line in fixed:
        key = (_texts(line), setting_of(line), line["arm"])
        if pairs_scored(line) == scored or scored is None:
            found[key] = line
        elif pairs_scored(line) is None:
            found.setdefault(key, line)
    return list(found.values())
