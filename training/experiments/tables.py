"""Writes tables of results: a row an arm with means over seeds, or a row a comparison."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.statistics import (
    LEVEL,
    Comparison,
    Line,
    Value,
    compare,
    equivalence,
    mean_and_spread,
    p_value,
)

NOT_RUN = "not run"
STS = "STS-7"  # the mean of the seven tests
MARGIN = 0.5  # points; a difference within it counts as none

Runs = Sequence[Line]
ByArm = Mapping[str, Runs]
Cell = Callable[[Runs], str]


def write_page(file: Path, title: str, command: str, parts: Iterable[str]) -> Path:
    """Write a page of tables, under its title and the command that makes it; returns its path."""
    parts = [f"# {title}", f"Made by `s2sent-train {command}`.", *parts]
    file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return file


def arms_of(lines: Iterable[Line], names: Iterable[str], key: str = "arm") -> dict[str, list[Line]]:
    """The runs of each arm by seed, in the order of ``names``; empty lists for arms without.

    Raises `ConfigError` where an arm has two runs of a seed, which differ in what no table says.
    """
    found: dict[str, list[Line]] = {name: [] for name in names}
    for line in sorted(lines, key=lambda line: int(line["seed"])):
        of_arm = found.get(line[key], [])
        if of_arm and of_arm[-1]["seed"] == line["seed"]:
            raise ConfigError(
                f"{line[key]} has two runs of seed {line['seed']} that differ in a rate or a "
                "setting: keep them in different files."
            )
        of_arm.append(line)
    return found


def by_setting(lines: Iterable[Line], names: Sequence[str]) -> dict[tuple[Any, ...], list[Line]]:
    """The runs that have the values of these fields in common, by these values, sorted."""
    found: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        values = [line.get(name) for name in names]
        plain = tuple(value if type(value) in (int, bool) else str(value) for value in values)
        found.setdefault(plain, []).append(line)
    return dict(sorted(found.items()))


def get(*path: str) -> Value:
    """Reads a nested value of a run; None where it is missing."""

    def value(run: Line) -> float | None:
        found: Any = run
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return None if found is None else float(found)

    return value


def values(runs: Runs, value: Value) -> list[float]:
    """One value for each run that has it."""
    return [number for run in runs if (number := value(run)) is not None]


def signed(difference: float) -> str:
    """A difference of two decimals with its sign; what rounds to 0 has a plus."""
    return f"{round(difference, 2) + 0.0:+.2f}"


def of_each_test(number: int) -> str:
    """The number of pairs of each test, 0 for all, in words."""
    return f"{number} pairs of each test" if number else "all pairs of the seven tests"


def count(runs: Runs) -> str:
    """The number of runs."""
    return str(len(runs))


def spread(value: Value, form: str = ".2f") -> Cell:
    """The mean of a value ± its standard deviation over runs."""
    return lambda runs: mean_and_spread(values(runs, value), form)


def mean(value: Value, form: str = ".2f") -> Cell:
    """The mean of a value over runs."""
    return lambda runs: f"{fmean(found):{form}}" if (found := values(runs, value)) else ""


def arms_table(
    labels: Mapping[str, str], runs: ByArm, columns: Mapping[str, Cell], *, corner: str = ""
) -> str:
    """A row an arm; one without runs is not run."""
    blank = [NOT_RUN, *[""] * (len(columns) - 1)]
    rows = (
        [labels[arm], *([cell(of) for cell in columns.values()] if of else blank)]
        for arm, of in runs.items()
    )
    return markdown_table([corner, *columns], rows)


def minus_table(
    labels: Mapping[str, str],
    runs: ByArm,
    arm: str,
    others: Iterable[str],
    score: str,
    value: Value,
) -> str:
    """An arm minus each of others by seeds, Holm's correction over the table."""
    sides = [(labels[other], runs[arm], runs[other]) for other in others]
    return comparisons_table(f"{labels[arm]}, minus", score, compare(sides, value))


def comparisons_table(heading: str, score: str, compared: Sequence[Comparison]) -> str:
    """A row a comparison: difference, interval, Holm's p, verdict, and whether it is in `MARGIN`.

    The p of the last column is of two one-sided tests, which Holm's correction does not count.
    """
    head = [heading, "pairs", score, "95 %", "p (Holm)", "", f"within ± {MARGIN:g}, p"]
    return markdown_table(head, [_comparison_row(each) for each in compared])


def _comparison_row(compared: Comparison) -> list[str]:
    found = compared.found
    interval = "" if found.low is None else f"{found.low:+.2f} to {found.high:+.2f}"
    row = [compared.label, str(len(found.differences)), signed(found.mean), interval]
    if compared.initial:
        return [*row, "", compared.verdict, ""]
    alike = equivalence(found.differences, MARGIN)
    yes = " (yes)" if alike is not None and alike < LEVEL else ""
    return [*row, p_value(compared.p), compared.verdict, p_value(alike) + yes]
