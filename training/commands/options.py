"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path, typer.Option(help="Folder that holds corpus/, sts/ and transfer/.")]


def whole_numbers(text: str, what: str) -> list[int]:
    """The numbers of a comma-separated option, each once; ``what`` names them in the error."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of {what} such as 2,4.") from None
    if repeated := [number for number in numbers if numbers.count(number) > 1]:
        raise typer.BadParameter(
            f"{text!r} names {repeated[0]} twice: give each of the {what} once."
        )
    return numbers


def some_whole_numbers(text: str, what: str) -> list[int]:
    """The numbers of an option that has one at least."""
    if numbers := whole_numbers(text, what):
        return numbers
    raise typer.BadParameter(f"The list of {what} is empty: give one at least, such as 2,4.")
