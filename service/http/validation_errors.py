"""Turns pydantic's validation errors into sentences that name the fields at fault."""

from typing import Any

from pydantic import ValidationError

from s2sent.service.errors import InvalidInput


def invalid_input(error: ValidationError) -> InvalidInput:
    """Pydantic's errors as one InvalidInput: the first as a sentence, then where the others are."""
    first, *others = error.errors(include_url=False)
    path = _path(first["loc"])
    also = ""
    if others:
        named = ", ".join(_path(other["loc"]) for other in others[:_NAMED])
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        also = f" Wrong as well: {named}{more}."
    return InvalidInput(f"{path or 'The body'} {_complaint(first)}.{also}", param=path or None)


_NAMED = 3  # fields at fault that a message names after the first
_SHOWN = 40  # characters of a value that a message repeats
_BEYOND_64_BITS = 2.0**63  # no float below it, above -2**63, was an integer in JSON


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


# Errors of fields that hold no text, whose strings may be repeated.
_OF_OPTIONS = frozenset({"bool_type", "int_type", "literal_error"})


def _complaint(detail: Any) -> str:
    sentence = _COMPLAINTS.get(detail["type"])
    if sentence is None:
        return str(detail["msg"])
    if detail["type"] == "missing":
        return sentence
    given = detail["input"]
    shown = in_json_terms(given)
    if isinstance(given, list) and detail["type"].startswith("too_"):
        shown = str(len(given))
    if isinstance(given, str) and detail["type"] in _OF_OPTIONS:
        shown = repr(given if len(given) <= _SHOWN else f"{given[:_SHOWN]}...")
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


def exact_integer(value: object) -> object:
    """An integer beyond 64 bits, which orjson reads as a float, as an integer to be refused."""
    return int(value) if isinstance(value, float) and abs(value) >= _BEYOND_64_BITS else value


def in_json_terms(value: object) -> str:
    """A JSON value in few words: a number as it is, of others the type in JSON's terms.

    A string is not repeated: it may be a text to embed, which belongs in no log.
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
