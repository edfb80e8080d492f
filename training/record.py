"""training.json: how a checkpoint came to be, for the manifest of what is exported from it.

It holds no time and no path, so the same recipe on the same data gives the same file.
"""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

RECORD_FILE = "training.json"
_VERSIONS = ("torch", "transformers", "sentence-transformers")


def write_record(folder: Path, content: dict[str, Any]) -> None:
    """Write ``content``, with the commit and the library versions, as ``folder/training.json``."""
    versions = {name: version(name) for name in _VERSIONS}
    whole = {**content, "commit": commit(Path(__file__).parent.parent), "versions": versions}
    text = json.dumps(whole, indent=2, ensure_ascii=False)
    (folder / RECORD_FILE).write_text(text + "\n", encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a checkpoint; empty for one that was trained some other way."""
    path = folder / RECORD_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def commit(root: Path) -> str | None:
    """The commit checked out at ``root``; None outside a git work tree or for packed refs."""
    git = root / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        return (git / head[5:]).read_text().strip() if head.startswith("ref: ") else head
    except OSError:
        return None
