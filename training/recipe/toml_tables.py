"""Builds frozen dataclasses from the tables of a TOML file.

An unknown, missing or mistyped key is an error that names the file and the key.
"""

import math
import types
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from s2sent.training.errors import ConfigError, InvalidValue

T = TypeVar("T")


def build(kind: type[T], table: dict[str, Any], where: str) -> T:
    """A dataclass from a table of the same keys; ``where`` starts the messages."""
    hints = get_type_hints(kind)
    options = {option.name: option for option in fields(kind)}  # type: ignore[arg-type]  # is one
    for key in table:
        if key not in options:
            raise ConfigError(f"{where} has the unknown key {key}: use {', '.join(options)}.")
    for key, option in options.items():
        if key not in table and option.default is option.default_factory is MISSING:
            raise ConfigError(f"{where} lacks the key {key}: add it.")
    values = {key: _value(hints[key], value, where, key) for key, value in table.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}.") from None


def require(condition: bool, otherwise: str) -> None:
    """Raises `InvalidValue` unless the condition holds; for a table's ``__post_init__``."""
    if not condition:
        raise InvalidValue(otherwise)


def require_least(table: object, least: int, *names: str, cure: str = "") -> None:
    """Raises `InvalidValue` unless the options of a table are at least ``least``."""
    for name in names:
        value = getattr(table, name)
        require(value >= least, f"{name} = {value} must be at least {least}{cure}")


def require_above_0(table: object, *names: str) -> None:
    """Raises `InvalidValue` unless the options of a table are above 0."""
    for name in names:
        value = getattr(table, name)
        require(value > 0, f"{name} = {value} must be above 0")


def _value(kind: Any, value: Any, where: str, key: str) -> Any:
    """``value`` checked to be of type ``kind``; nested tables become their dataclasses."""
    if get_origin(kind) is types.UnionType:
        choices = [choice for choice in get_args(kind) if choice is not types.NoneType]
        kind = choices[0] if len(choices) == 1 else _named(choices, value, where, key)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            known = ", ".join(get_args(kind))
            raise ConfigError(f"{where} has {key} = {value!r}: choose one of {known}.")
        return value
    if get_origin(kind) is list and type(value) is list:
        return [_value(get_args(kind)[0], item, where, key) for item in value]
    if is_dataclass(kind) and isinstance(kind, type) and type(value) is dict:
        return build(kind, value, f"{where} [{key}]")
    if kind is float and type(value) is int:
        return _as_float(value, where, key)
    if type(value) is float and not math.isfinite(value):
        raise ConfigError(f"{where} has {key} = {value}: write a finite number.")
    expected = dict if is_dataclass(kind) else get_origin(kind) or kind
    if type(value) is not expected:
        name = "table" if expected is dict else expected.__name__
        raise ConfigError(f"{where} has {key} = {value!r}: it must be of type {name}.")
    return value


def _as_float(value: int, where: str, key: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ConfigError(f"{where} has {key} above 1.8e308: write a smaller number.") from None


def _named(choices: list[Any], value: Any, where: str, key: str) -> Any:
    """Which of several dataclasses a table means: the one whose ``name`` it gives."""
    by_name = {choice.__dataclass_fields__["name"].default: choice for choice in choices}
    name = value.get("name") if type(value) is dict else value
    if type(name) is not str or name not in by_name:
        known = ", ".join(by_name)
        raise ConfigError(f"{where} [{key}] has the name {name!r}: choose one of {known}.")
    return by_name[name]
