"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path, typer.Option(help="Folder that holds corpus/, sts/ and transfer/.")]


def whole_numbers(text: str, what: str) -> list[int]:
    """The numbers of a comma-separated option; ``what`` names them in the error."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of {what} such as 2,4.") from None
