"""The command ``s2sent-train docstrings``: a corpus of technical texts, from installed packages."""

from pathlib import Path
from typing import Annotated

import typer


def docstrings(
    output: Annotated[Path, typer.Argument(help="The .tsv file to write.")],
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Of Python packages; else the standard library and site-packages."),
    ] = None,
) -> None:
    """Write summaries and descriptions of Python docstrings to a table of related pairs."""
    from training.docstrings import write_docstrings
    from training.evaluation.results.output import require_writable

    require_writable(output)
    count = write_docstrings(output, folders or [])
    typer.echo(f"{count} pairs in {output}")
