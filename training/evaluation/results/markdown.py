"""Markdown tables: whole ones, and single lines for tables that are printed as they grow."""

from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of text cells; every row has as many cells as ``head``."""
    return "\n".join([markdown_head(head), *(markdown_row(row) for row in rows)])


def markdown_head(head: Sequence[str], *, numeric: bool = False) -> str:
    """The two lines above the rows; ``numeric`` aligns all columns but the first to the right."""
    rule = ["---", *["---:" if numeric else "---"] * (len(head) - 1)]
    return f"{markdown_row(head)}\n{markdown_row(rule)}"


def markdown_row(cells: Iterable[str]) -> str:
    """One line of a table."""
    return f"| {' | '.join(cells)} |"
