"""Records of how a checkpoint or a result was made, as JSON files.

``training.json`` lies in a checkpoint and goes into the manifest of what is exported from it. It
holds no time and no path, so the same recipe on the same data gives the same file.
"""

import hashlib
import json
import os
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from s2sent.training.errors import DataError

RECORD_FILE = "training.json"
ROOT = Path(__file__).resolve().parents[2]
SOURCE_FOLDERS = ("model", "training")  # the code that decides what a run gives
ANCESTRY = ("began_from", "teachers", "second_tower")  # records in a record
_CURE = "restore it, or delete it to go on without a record"
_VERSIONS = ("torch", "transformers", "sentence-transformers")


def write_record(folder: Path, content: dict[str, Any]) -> None:
    """Write ``content``, its provenance and library versions as ``folder/training.json``."""
    versions = {name: version(name) for name in _VERSIONS}
    whole = without_repeats({**content, **provenance(), "versions": versions})
    text = json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / RECORD_FILE).write_text(text + "\n", encoding="utf-8")


def without_repeats(record: dict[str, Any]) -> dict[str, Any]:
    """The record, in which a run that stands in it twice has its ancestry the first time only."""
    seen: set[str] = set()

    def once(value: Any) -> Any:
        if isinstance(value, list):
            return [once(each) for each in value]
        own = {name: field for name, field in value.items() if name not in ANCESTRY}
        if (key := json.dumps(own, sort_keys=True)) in seen:
            return own
        seen.add(key)
        return {name: once(of) if name in ANCESTRY else of for name, of in value.items()}

    whole: dict[str, Any] = once(record)
    return whole


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a checkpoint; empty for one that was trained some other way.

    Raises `DataError` for a file that is no record.
    """
    path = folder / RECORD_FILE
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not a whole record ({error}): {_CURE}.") from None
    if not isinstance(record, dict):
        raise DataError(f"{path} holds no JSON object, which a record is: {_CURE}.")
    return record


def write_json(file: Path, content: Any) -> None:
    """Write a JSON file whole or not at all; folders are made as needed."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)


def provenance(root: Path = ROOT) -> dict[str, Any]:
    """Which code ran: the commit, whether it was changed since, and a hash of the source.

    ``dirty`` is true when a file of `SOURCE_FOLDERS` differs from the commit or is untracked;
    ``commit`` and ``dirty`` are None outside a git work tree.
    """
    status = _git(root, "status", "--porcelain", "--", *SOURCE_FOLDERS)
    return {
        "commit": commit(root),
        "dirty": None if status is None else bool(status),
        "source_sha256": source_sha256(root),
    }


def commit(root: Path) -> str | None:
    """The commit checked out at ``root``; None outside a git work tree."""
    return _git(root, "rev-parse", "HEAD")


def source_sha256(root: Path = ROOT) -> str:
    """The sha256 over the relative path and content of every Python file of `SOURCE_FOLDERS`."""
    digest = hashlib.sha256()
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _git(root: Path, *arguments: str) -> str | None:
    """What git prints; None where git is missing or ``root`` is not the top of a work tree."""
    if not (root / ".git").exists():  # an installed package inside some other repository
        return None
    try:
        done = subprocess.run(  # noqa: S603 - see the import
            ["git", *arguments],  # noqa: S607 - whichever git the user has
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
