"""Finding the columns of text and id by the names that the options give."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice

from s2sent.service.bulk.job import InputError, Options

NAMED_COLUMNS = 10  # in an error; a table may have thousands


@dataclass(frozen=True)
class Columns:
    """Where text, id and what is kept stand in a table; ``id`` is None where none is asked for."""

    text: int
    id: int | None
    kept: tuple[int, ...]


def find_columns(name: str, columns: Sequence[str], options: Options) -> Columns:
    """The wanted columns of table ``name``; raises InputError unless each is there once."""
    id_at = None
    text_at = _find(name, columns, options.text_column, "--text-column")
    if options.id_column is not None:
        id_at = _find(name, columns, options.id_column, "--id-column")
    kept = tuple(_find(name, columns, column, "--keep") for column in options.keep)
    return Columns(text_at, id_at, kept)


def refuse_columns(name: str, options: Options, *, names_text_column: bool = False) -> None:
    """Raise InputError where a column of ``name`` is asked for, which has none.

    names_text_column: the text column is asked for, be it by its default.
    """
    for flag, wanted, asked in (
        (
            "--text-column",
            options.text_column,
            names_text_column or options.text_column != Options.text_column,
        ),
        ("--id-column", options.id_column, options.id_column is not None),
        *(("--keep", column, True) for column in options.keep),
    ):
        if asked:
            raise InputError(
                f"{name} is lines of text and has no column {wanted!r}. Leave out {flag}, or give"
                " --input-format."
            )


def first_names(names: Collection[str]) -> str:
    """The first of many names, and how many there are beside them."""
    more = len(names) - NAMED_COLUMNS
    shown = ", ".join(islice(names, NAMED_COLUMNS)) or "nothing"
    return f"{shown} and {more} more" if more > 0 else shown


def _find(name: str, columns: Sequence[str], wanted: str, flag: str) -> int:
    found = [at for at, column in enumerate(columns) if column == wanted]
    if not found:
        raise InputError(
            f"{name} has no column {wanted!r}; it has {first_names(columns)}. Name one by {flag}."
        )
    if len(found) > 1:
        raise InputError(
            f"{name} has {len(found)} columns {wanted!r}. Rename all but one of them, or name"
            f" another by {flag}."
        )
    return found[0]
