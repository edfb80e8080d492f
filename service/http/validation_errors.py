"""Turns pydantic's validation errors into one sentence that names the field at fault."""

from typing import Any

from pydantic import ValidationError

from service.errors import InvalidInput


def invalid_input(error: ValidationError) -> InvalidInput:
    """Pydantic's errors as one InvalidInput: the first as a sentence, the others as a count."""
    details = error.errors(include_url=False)
    first = details[0]
    path = _path(first["loc"])
    others = f" ({len(details) - 1} more like it.)" if len(details) > 1 else ""
    return InvalidInput(f"{path or 'The body'} {_complaint(first)}.{others}", param=path or None)


_COMPLAINTS = {
    "missing": "is required",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have {min_length} items",
    "too_long": "must have {max_length} items",
}


def _complaint(detail: Any) -> str:
    sentence = _COMPLAINTS.get(detail["type"])
    if sentence is None:
        return str(detail["msg"])
    if detail["type"] == "missing":
        return sentence
    given = detail["input"]
    shown = repr(given) if type(given) in (int, float) else kind_of(given)
    if isinstance(given, list) and detail["type"].startswith("too_"):
        shown = str(len(given))
    return f"{sentence.format(**detail.get('ctx', {}))}, got {shown}"


def _path(location: tuple[int | str, ...]) -> str:
    """A JSON path such as ``inputs.pairs[3][0]``, without the tags of unions."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            path += f".{part}" if path else part
    return path


def kind_of(value: object) -> str:
    """The type of a JSON value, in JSON's terms."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
