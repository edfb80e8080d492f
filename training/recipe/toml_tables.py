"""Reads the tables of a TOML file into pydantic's dataclasses; an error is one sentence.

It names the file and the key. Tables are declared with `TABLE`: types are strict, but for whole
numbers where a float is expected, and unknown keys and numbers that are not finite are refused.
"""

import json
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails

from s2sent.training.errors import ConfigError

T = TypeVar("T")
TABLE = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
UNKNOWN_KEY = "unexpected_keyword_argument"
# By pydantic's name of an error, which ends in "_type".
TYPES = {"string": "str", "dict": "table", "dataclass": "table"}


def build(kind: type[T], table: dict[str, Any], where: str) -> T:
    """A dataclass from a table of the same keys. Raises `ConfigError`; ``where`` starts it."""
    try:
        # Strict types take a table for a dataclass in JSON alone.
        return TypeAdapter(kind).validate_json(json.dumps(table, default=str))
    except ValidationError as error:
        found = error.errors(include_url=False)
        first = next((each for each in found if each["type"] == UNKNOWN_KEY), found[0])
        raise ConfigError(f"{where}{_sentence(kind, first)}.") from None


def require(condition: bool, otherwise: str) -> None:
    """Raises ValueError unless the condition holds; for a table's ``__post_init__``."""
    if not condition:
        raise ValueError(otherwise)


def at_least(least: int, cure: str = "") -> AfterValidator:
    """The option is ``least`` or more."""
    return _checked(lambda value: value >= least, f"must be at least {least}{cure}")


def above_0(cure: str = "") -> AfterValidator:
    """The option is above 0."""
    return _checked(lambda value: value > 0, f"must be above 0{cure}")


def _checked(holds: Callable[[Any], bool], otherwise: str) -> AfterValidator:
    def check(value: Any, info: ValidationInfo) -> Any:
        require(holds(value), f"{info.field_name} = {value} {otherwise}")
        return value

    return AfterValidator(check)


Count = Annotated[int, at_least(0)]
AboveZero = Annotated[float, above_0()]


def _sentence(kind: Any, error: ErrorDetails) -> str:
    """What is wrong, from the table where it is, without a full stop."""
    *path, key = error["loc"] or ("",)
    tables = [kind]
    section = error["loc"][0] if error["loc"] else ""
    if inner := _tables_of(kind, section):
        tables = [each for each in inner if getattr(each, "name", None) in path] or inner
    place = f" [{section}]" if inner and (path or error["type"] == "value_error") else ""
    name, value = error["type"], error["input"]
    if name == "value_error":
        return f"{place}: {error['ctx']['error']}"
    if name == UNKNOWN_KEY:
        known = ", ".join(option.name for option in fields(tables[0]))
        return f"{place} has the unknown key {key}: use {known}"
    if name == "missing":
        return f"{place} lacks the key {key}: add it"
    if name.startswith("union_tag"):
        known = ", ".join(each.name for each in inner)
        return f" [{key}] has the name {value.get('name')!r}: choose one of {known}"
    option = next((part for part in reversed(error["loc"]) if isinstance(part, str)), "recipe")
    if name == "finite_number" and type(value) is int:
        return f"{place} has {option} above 1.8e308: write a smaller number"
    return f"{place} has {option} = {value!r}: {_cure(name, error)}"


def _cure(name: str, error: ErrorDetails) -> str:
    if name == "finite_number":
        return "write a finite number"
    if name == "literal_error":
        known = re.findall("'([^']*)'", error["ctx"]["expected"])
        return f"choose one of {', '.join(known)}"
    expected = name.removesuffix("_type")
    return f"it must be of type {TYPES.get(expected, expected)}"


def _tables_of(kind: Any, key: int | str) -> list[Any]:
    """The dataclasses that an option may hold, alone, in a list or as one of several."""
    option = kind.__pydantic_fields__.get(key)
    kinds = (option.annotation, *get_args(option.annotation)) if option else ()
    return [each for each in kinds if is_dataclass(each)]
