"""Cells and tables in Markdown: a median with its min and max, and – for what is not there."""

from collections.abc import Iterable, Sequence

from benchmarks.report.results import Number, Spread

NONE = "–"


def format_number(value: Number, digits: int = 2) -> str:
    """A number with so many digits after the point."""
    return NONE if value is None else f"{value:.{digits}f}"


def format_spread(spread: Spread | None, digits: int = 2) -> str:
    """``median (min–max)``."""
    if spread is None:
        return NONE
    middle, least, most = (
        f"{value:.{digits}f}" for value in (spread.median, spread.least, spread.most)
    )
    return f"{middle} ({least}–{most})"


def to_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, its first column to the left and the others to the right."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
