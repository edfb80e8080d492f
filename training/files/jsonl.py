"""Results as JSON Lines: one run a line, one file a table."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from s2sent.training.errors import ConfigError
from s2sent.training.files.locks import locked


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The runs in a file, in its order; none where there is no file.

    Raises `ConfigError` naming the line that is no JSON object.
    """
    if not file.is_file():
        return []
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            content = json.loads(line)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise ConfigError(f"{file}, line {number} is no result of a run: delete the line.")
        found.append(content)
    return found


def append_line(file: Path, content: Mapping[str, Any]) -> None:
    """Add a run as the last line; processes that share the file take turns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with locked(file, wait=True), file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(content, ensure_ascii=False) + "\n")
