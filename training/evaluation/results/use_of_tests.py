"""Keeps count of which recipes were scored on the test tasks, so that tests choose no recipe.

Each checkpoint that is scored on the seven STS tests adds a line to ``tests-opened.jsonl`` in the
folder that holds it. A checkpoint or artifact of another recipe that is scored there later was
possibly chosen with those scores in sight.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from s2sent.model.artifact.manifest import MANIFEST
from s2sent.training.files.jsonl import append_line, read_lines
from s2sent.training.files.record import RECORD_FILE, read_record

TEST_USE_FILE = "tests-opened.jsonl"
NOT_OF_THE_RECIPE = ("seed", "tests_opened")  # fields of a record; an artifact's has the second


def log_test_use(name: str) -> str | None:
    """Record that ``name`` is scored on the tests; a warning where other recipes were before it.

    Names that are no folder of a checkpoint or an artifact with a record have no history.
    """
    folder = Path(name)
    recipe = _recipe(folder)
    if recipe is None:
        return None
    log = folder.resolve().parent / TEST_USE_FILE
    own, before = _digest(recipe), read_lines(log)
    others = {line["recipe_sha256"]: line["name"] for line in before if line.get("recipe_sha256")}
    others.pop(own, None)
    if (folder / RECORD_FILE).is_file() and not any(
        (line["name"], line["recipe_sha256"]) == (folder.name, own) for line in before
    ):
        append_line(log, {"name": folder.name, "recipe_sha256": own})
    if not others:
        return None
    return (
        f"Warning: {', '.join(others.values())} of another recipe were scored on the tests before "
        f"{folder.name} ({log}): if {folder.name} was chosen since, it was chosen with its tests "
        "in sight; choose with --dev-only."
    )


def _recipe(folder: Path) -> dict[str, Any] | None:
    """The recipe of a checkpoint or an artifact without its seed; None where nothing is recorded.

    A record without a recipe, such as that of averaged weights, stands for it as a whole.
    """
    record = read_record(folder)
    if not record and (folder / MANIFEST).is_file():
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8")).get("training", {})
    if not record:
        return None
    recipe = record.get("recipe")
    found = recipe if isinstance(recipe, dict) else record
    return {key: value for key, value in found.items() if key not in NOT_OF_THE_RECIPE}


def _digest(recipe: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
