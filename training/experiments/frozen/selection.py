"""Which runs of a file of results stand in its tables, and which of them can be compared.

A file may hold runs of several backbones, lengths and rates: those with all of this in common are
compared, and the others have tables of their own.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from s2sent.training.evaluation.results.statistics import Line
from s2sent.training.experiments.frozen.arms import ARMS
from s2sent.training.experiments.frozen.train import CHOSEN_ON

TUNING_SEED = 0  # of the runs that choose a rate
TESTS = "tests"  # in a run's line: task or measure to value
PAIRS = "pairs_per_task"  # among them, where the tests were thinned
KEY = ("backbone", "corpus_sha256", "reading", "exit", "objective", "arm", "seed", "schedule")

Setting = tuple[int, str]  # depth, objective
Details = tuple[str, ...]  # what the runs of a table have in common, in words


def head_file(cache: Path, line: Line) -> Path:
    """Where the trained head of a run is kept; the teacher counts only where one is followed."""
    values = [line.get(name) for name in KEY] + ([line["teacher"]] if "teacher" in line else [])
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return cache / "heads" / f"{digest[:16]}.safetensors"


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


def comparable(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The runs of each table by its title, those that chose a rate left out.

    Of an arm whose rate seed 0 chose only the runs at that rate are in it. Where nothing is learned
    there are no steps: the run stands in every table of its texts and depth, once.
    """
    found: dict[Details, list[Line]] = {}
    chosen = _chosen_rates(lines)
    for line in (line for line in lines if learns(line) and counts(line)):
        rate = line["schedule"]["learning_rate"]
        if chosen.get(_series(line), rate) == rate:
            rates = "rates chosen by seed 0" if _series(line) in chosen else f"rate {rate:g}"
            found.setdefault((*_protocol(line), rates), []).append(line)
    fixed = [line for line in lines if not learns(line)]
    if not found:
        return {"": _once(fixed, None)} if fixed else {}
    split: dict[Details, list[Line]] = {}
    for details, runs in found.items():
        for pairs, of_one in _by_pairs_scored(runs).items():
            scored = "no tests" if pairs is None else f"{pairs or 'all'} pairs of each test"
            asked = {(_texts(line), setting_of(line)) for line in of_one}
            beside = [line for line in fixed if (_texts(line), setting_of(line)) in asked]
            split[*details, scored] = [*of_one, *_once(beside, pairs)]
    return dict(zip(_titles([*split]), split.values(), strict=True))


def _protocol(line: Line) -> Details:
    schedule = line["schedule"]
    return (
        f"{schedule['steps']} steps of {schedule['batch_size']} pairs, {_texts(line)}",
        f"scored every {schedule['eval_every']} steps",
    )


def _series(line: Line) -> tuple[Any, ...]:
    """What the runs of an arm that differ in their seed and rate have in common."""
    return _protocol(line), setting_of(line), line["arm"]


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


def _by_pairs_scored(runs: Sequence[Line]) -> Mapping[int | None, list[Line]]:
    """The runs by the number of pairs scored, if there are several; some may not be scored yet."""
    numbers = {number for number in map(pairs_scored, runs) if number is not None}
    if len(numbers) < 2:
        return {next(iter(numbers), None): [*runs]}
    found: dict[int | None, list[Line]] = {}
    for line in runs:
        found.setdefault(pairs_scored(line), []).append(line)
    return found


def _titles(tables: Sequence[Details]) -> list[str]:
    """A title each, with the details in which it differs from another of the same protocol."""
    titles = []
    for first, *details in tables:
        alike = [other[1:] for other in tables if other[0] == first]
        differ = [len(set(column)) > 1 for column in zip(*alike, strict=True)]
        titles.append(", ".join([first, *(d for d, of in zip(details, differ, strict=True) if of)]))
    return titles


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
