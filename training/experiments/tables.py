"""Writes tables of results: a row an arm with means over seeds, or a row a comparison."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from s2sent.training.evaluation.results.markdown import markdown_table
from s2sent.training.evaluation.results.statistics import (
    LEVEL,
    Comparison,
    Line,
    Value,
    equivalence,
    mean_and_spread,
    p_value,
)

NOT_RUN = "not run"
MARGIN = 0.5  # points; a difference within it counts as none

Runs = Sequence[Line]
ByArm = Mapping[str, Runs]
Cell = Callable[[Runs], str]


def write_page(file: Path, title: str, command: str, parts: Iterable[str]) -> Path:
    """Write a page of tables, under its title and the command that makes it; returns its path."""
    parts = [f"# {title}", f"Made by `s2sent-train {command}`.", *parts]
    file.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return file


def arms_of(lines: Runs, names: Iterable[str], key: str = "arm") -> dict[str, list[Line]]:
    """The runs of each arm by seed, in the order of ``names``; empty lists for arms without."""
    ordered = sorted(lines, key=lambda line: int(line["seed"]))
    return {name: [line for line in ordered if line[key] == name] for name in names}


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


def count(runs: Runs) -> str:
    """The number of runs."""
    return str(len(runs))


def spread(value: Value, form: str = ".2f") -> Cell:
    """The mean of a value ± its standard deviation over runs."""
    return lambda runs: mean_and_spread(values(runs, value), form)


def mean(value: Value, form: str = ".2f") -> Cell:
    """The mean of a value over runs."""
    return lambda runs: f"{fmean(found):{form}}" if (found := values(runs, value)) else ""


def least(value: Value, form: str = ".3f") -> Cell:
    """The least value among runs."""
    return lambda runs: f"{min(found):{form}}" if (found := values(runs, value)) else ""


def mean_weights(key: str = "block_weights", form: str = ".2f") -> Cell:
    """The mean weight of each block over runs, the shallowest first."""

    def cell(runs: Runs) -> str:
        known = [run[key] for run in runs if run.get(key)]
        return " ".join(f"{fmean(weights):{form}}" for weights in zip(*known, strict=True))

    return cell


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


def comparisons_table(
    heading: str, score: str, compared: Sequence[Comparison], margin: float = MARGIN
) -> str:
    """A row a comparison: difference, interval, Holm's p, verdict, and whether it is in a margin.

    The p of the last column is of two one-sided tests, which Holm's correction does not count.
    """
    head = [heading, "pairs", score, "95 %", "p (Holm)", "", f"within ± {margin:g}, p"]
    return markdown_table(head, [_comparison_row(each, margin) for each in compared])


def _comparison_row(compared: Comparison, margin: float) -> list[str]:
    found = compared.found
    interval = "" if found.low is None else f"{found.low:+.2f} to {found.high:+.2f}"
    row = [compared.label, str(len(found.differences)), signed(found.mean), interval]
    if compared.initial:
        return [*row, "", compared.verdict, ""]
    alike = equivalence(found.differences, margin)
    yes = " (yes)" if alike is not None and alike < LEVEL else ""
    return [*row, p_value(compared.p), compared.verdict, p_value(alike) + yes]


def difference_columns(compared: Sequence[Comparison]) -> dict[str, Cell]:
    """Columns that say of an arm what it differs in from the one it is compared with.

    The comparisons are labelled by the arms' names; other arms have empty cells.
    """
    found = {each.label: each for each in compared}

    def cell(text: Callable[[Comparison], str]) -> Cell:
        return lambda runs: text(found[arm]) if (arm := runs[0]["arm"]) in found else ""

    return {
        "Δ": cell(lambda each: signed(each.found.mean)),
        "p (Holm)": cell(lambda each: "" if each.initial else p_value(each.p)),
        "": cell(lambda each: each.verdict),
    }
