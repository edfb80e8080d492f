"""The manifest of an output: what its run was begun with, and what another run has in place of it.

It is written by `service.bulk.output.folder`, which also adds the parts at the end.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from s2sent.service.bulk.input.files import InputFile
from s2sent.service.bulk.job import Model, Options, OutputError

FORMAT_VERSION = 1


def describe_run(model: Model, options: Options, inputs: list[InputFile]) -> dict[str, Any]:
    """The manifest of a run that begins."""
    return {
        "format_version": FORMAT_VERSION,
        "model": {"name": model.name, "fingerprint": model.fingerprint},
        "options": asdict(options) | {"keep": list(options.keep) or None},
        "input": [file.as_json() for file in inputs],
        "rows": sum(file.rows for file in inputs),
    }


def require_same(path: Path, ours: dict[str, Any]) -> None:
    """Raise OutputError unless the manifest at ``path`` is that of our run."""
    try:
        there = json.loads(path.read_bytes())
        different = next(_differences(there, ours), None)
    except (OSError, ValueError, TypeError, AttributeError):  # no JSON, or JSON of another shape
        raise OutputError(
            f"{path} cannot be read as a manifest of s2sent embed. Begin again with --overwrite."
        ) from None
    if different:
        name, before, now = different
        raise OutputError(
            f"{path.parent} was begun {_begun(name, before)} and this run has {now}. Give what it"
            " was begun with, --overwrite it or name another folder."
        )


def _differences(there: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What two manifests differ in: a name and both values.

    Raises TypeError or AttributeError where one has another shape.
    """
    if there.get("format_version") != FORMAT_VERSION:
        yield "format_version", there.get("format_version"), FORMAT_VERSION
    models = there.get("model", {}), ours["model"]
    before, now = (f"{m.get('name')} ({str(m.get('fingerprint'))[:16]})" for m in models)
    if models[0].get("fingerprint") != models[1]["fingerprint"]:
        yield "the model", before, now
    options = there.get("options", {})
    for name, value in ours["options"].items():
        if options.get(name) != value:
            yield f"--{name.replace('_', '-')}", options.get(name), _shown(value)
    files_before, files_now = there.get("input", []), ours["input"]
    if len(files_before) != len(files_now):
        yield "input files,", len(files_before), len(files_now)
    for old, new in zip(files_before, files_now, strict=True):
        if any(old.get(key) != new[key] for key in ("bytes", "sha256", "rows", "format")):
            yield "the input", _describe(old), _describe(new)


def _begun(name: str, value: object) -> str:
    """How a run was begun; an option of None was not given."""
    return f"without {name}" if value is None else f"with {name} {_shown(value)}"


def _shown(value: object) -> str:
    """An option as a sentence has it; an empty text in quotes."""
    return "none" if value is None else str(value) or "''"


def _describe(file: dict[str, Any]) -> str:
    return f"{file.get('name')} ({file.get('bytes')} bytes, sha256 {str(file.get('sha256'))[:16]})"
