"""Reads the settings once, from flags and ``S2SENT_*`` variables, and says what is wrong."""

import difflib
import os
from typing import Any

from pydantic import ValidationError

from s2sent.service.settings import ENV_PREFIX, Settings, SettingsError, environment_name


def load_settings(**given: object) -> Settings:
    """Settings from the given values first, the environment second, the defaults last.

    Raises SettingsError with one sentence for each problem, unknown variables among them.
    """
    problems = [_unknown_variable(name) for name in sorted(os.environ) if _is_unknown(name)]
    try:
        settings = Settings(**given)  # type: ignore[arg-type]  # checked by pydantic, not by mypy
    except ValidationError as error:
        # A default that depends on a field that is wrong is not a problem of its own.
        own = [one for one in error.errors() if one["type"] != "default_factory_not_called"]
        problems += [_sentence(problem) for problem in own]
    if problems:
        raise SettingsError(problems)
    return settings


def _is_unknown(name: str) -> bool:
    known = {environment_name(field) for field in Settings.model_fields}
    return name.upper().startswith(ENV_PREFIX) and name.upper() not in known


def _unknown_variable(name: str) -> str:
    field = name.lower().removeprefix(ENV_PREFIX.lower())
    close = difflib.get_close_matches(field, Settings.model_fields, n=1)
    cure = f"Did you mean {environment_name(close[0])}?" if close else "Unset it."
    return f"{name} is not a setting. {cure}"


def _sentence(problem: Any) -> str:
    """One of pydantic's error records as a sentence that names the setting and its value."""
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not problem["loc"]:
        return message
    field = str(problem["loc"][0])
    value = "" if field == "api_keys" else f" (given: {problem['input']!r})"
    return f"{field} ({environment_name(field)}): {message}{value}."
