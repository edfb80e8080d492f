"""The settings as the command line and docs/settings.md show them: names, bounds and defaults."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from s2sent.service.settings import DEFAULT_ARTIFACT, Settings, environment_name


@dataclass(frozen=True)
class FieldDescription:
    """A setting as the command line and the documentation show it."""

    name: str
    group: str
    kind: str  # e.g. "integer", "cpu|cuda"
    default: str  # empty for none
    bounds: str  # e.g. "1 to 65535; at least max_batch_texts"; empty for none
    description: str

    @property
    def variable(self) -> str:
        """The environment variable, e.g. ``S2SENT_PORT``."""
        return environment_name(self.name)

    @property
    def flag(self) -> str:
        """The flag of ``s2sent serve``, e.g. ``--port``."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def opposite_flag(self) -> str:
        """The flag that sets a boolean to false, e.g. ``--no-log-requests``; empty for others."""
        return f"--no-{self.flag.removeprefix('--')}" if self.kind == "boolean" else ""


# Bounds that depend on another setting, which `Settings` checks after all fields.
_BOUNDS_BY_OTHERS = {
    "precision": "int8 on a CPU only, fp16 and fp32 on a GPU",
    "concurrent_runs": "on a GPU at most 1",
    "max_batch_tokens": "at least max_batch_texts",
    "max_batch_texts": "at most max_batch_tokens",
    "max_queue_tokens": "at least max_batch_tokens",
    "require_keys": "true only with API keys",
    "metrics_require_key": "true only with API keys",
}


def describe_fields() -> list[FieldDescription]:
    return [_describe(name, field) for name, field in Settings.model_fields.items()]


def settings_table() -> str:
    """The settings as a Markdown table; the flags follow from the variables."""
    lines = ["| variable | default | bounds | what |", "| --- | --- | --- | --- |"]
    for field in describe_fields():
        default = f"`{field.default}`" if field.default else ""
        lines.append(f"| `{field.variable}` | {default} | {field.bounds} | {field.description} |")
    return "\n".join(lines)


def _describe(name: str, field: FieldInfo) -> FieldDescription:
    extra = field.json_schema_extra
    group = extra["group"] if isinstance(extra, dict) else ""
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    own_bounds = ", ".join(choices) or _shown_bounds(field.metadata)
    return FieldDescription(
        name=name,
        group=str(group),
        kind="|".join(choices) or _KINDS.get(field.annotation, "text"),
        default=_shown_default(field.default_factory or field.default),
        bounds="; ".join(filter(None, (own_bounds, _BOUNDS_BY_OTHERS.get(name)))),
        description=field.description or "",
    )


_KINDS: dict[object, str] = {
    **{bool: "boolean", int: "integer", int | None: "integer", float: "number"},
    **{Path: "path", Path | None: "path"},
}


def _shown_default(value: object) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "artifacts/default" if value == DEFAULT_ARTIFACT else str(value)


def _shown_bounds(metadata: list[Any]) -> str:
    limits = {type(bound): bound for bound in metadata}
    if annotated_types.Gt in limits:
        return f"above {limits[annotated_types.Gt].gt} to {limits[annotated_types.Le].le}"
    if annotated_types.Ge in limits:
        return f"{limits[annotated_types.Ge].ge} to {limits[annotated_types.Le].le}"
    return ""
