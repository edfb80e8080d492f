"""The commands that write corpora of pairs: ``s2sent-train docstrings`` and ``caption-edits``."""

from pathlib import Path
from typing import Annotated

import typer

from s2sent.training.commands.options import Data

Table = Annotated[Path, typer.Argument(help="The .tsv file to write.")]


def docstrings(
    output: Table,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Of Python packages; else the standard library and site-packages."),
    ] = None,
) -> None:
    """Write summaries and descriptions of Python docstrings to a table of related pairs."""
    from s2sent.training.docstrings import write_docstrings
    from s2sent.training.evaluation.results.output import require_writable

    require_writable(output)
    count = write_docstrings(output, folders or [])
    typer.echo(f"{count} pairs in {output}")


def caption_edits(output: Table, data: Data) -> None:
    """Write captions of pictures and edits of them to a table of related pairs."""
    from s2sent.training.caption_edits.table import write_caption_edits
    from s2sent.training.evaluation.results.output import require_writable

    require_writable(output)
    count = write_caption_edits(output, data)
    typer.echo(f"{count} pairs in {output}")
