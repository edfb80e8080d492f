"""Options that several commands have."""

import math
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


def positive_numbers(text: str, what: str) -> list[float]:
    """The numbers above 0 of a comma-separated option; ``what`` names them in the error."""
    try:
        numbers = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise typer.BadParameter(f"{text!r} is not a list of {what} such as 1e-3,1e-2.")
    return numbers
