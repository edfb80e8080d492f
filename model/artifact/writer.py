"""Writing an artifact folder: a folder appears complete and verified, or not at all.

A killed or failed export leaves no folder that `model.artifact.reader` opens.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.manifest import MANIFEST, FileEntry, Manifest
from s2sent.model.artifact.reader import Artifact

_PARTIAL_MANIFEST = f".{MANIFEST}.partial"


@contextmanager
def staged(target: Path, *, overwrite: bool = False, marker: str = MANIFEST) -> Iterator[Path]:
    """Yield a temporary folder beside ``target``, and rename it to ``target`` when the block ends.

    The block fills the folder and ends with `seal`. After an exception, or when the process is
    killed in it, ``target`` is as it was. Raises ArtifactError when ``target`` exists, before the
    block or after it, unless with ``overwrite`` it is a folder that is empty or has the file
    ``marker``, and with a manifest no other files than that lists.
    """
    _require_free(target, overwrite, marker)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        yield partial
        _require_free(target, overwrite, marker)  # another process may have made it meanwhile
        _replace(target, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def seal(folder: Path, manifest: Manifest) -> Artifact:
    """Hash every file in ``folder``, write the manifest last, and open the result."""
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    entries = {name: _describe(folder / name) for name in names if name != MANIFEST}
    _write_manifest(folder, dataclasses.replace(manifest, files=entries))
    return Artifact.open(folder)


def record_scores(
    artifact: Artifact, scores: Mapping[str, Any], *, opened: str | None = None
) -> Artifact:
    """Replace the manifest's scores, in place and atomically; returns the artifact reopened.

    ``opened`` is the date on which the test tasks were scored, as YYYY-MM-DD; it is added to
    ``training.tests_opened``.
    """
    return _record(artifact, opened, scores=dict(scores))


def record_by_depth(
    artifact: Artifact, by_depth: Mapping[str, Any], *, opened: str | None = None
) -> Artifact:
    """Replace the manifest's ``by_depth``, as `record_scores` does the scores."""
    return _record(artifact, opened, by_depth=dict(by_depth))


def _record(artifact: Artifact, opened: str | None, **fields: Any) -> Artifact:
    training = dict(artifact.manifest.training)
    if opened is not None:
        dates = [*training.get("tests_opened", []), opened]
        training["tests_opened"] = list(dict.fromkeys(dates))
    manifest = dataclasses.replace(artifact.manifest, training=training, **fields)
    _write_manifest(artifact.path, manifest)
    return Artifact.open(artifact.path)


def _require_free(target: Path, overwrite: bool, marker: str) -> None:
    """Raise ArtifactError for a link to nothing, and for what exists and may not be overwritten."""
    if target.is_symlink() and not target.exists():
        raise ArtifactError(f"{target} is a link to nothing. Remove it or choose another folder.")
    if target.exists():
        if not overwrite:
            raise ArtifactError(
                f"{target} exists. Choose another folder, or replace it with --overwrite"
                " (overwrite=True in Python)."
            )
        _require_replaceable(target, marker)


def _require_replaceable(target: Path, marker: str) -> None:
    """Raise ArtifactError for a path that holds something else than what would replace it."""
    reason = ""
    if not target.is_dir():
        reason = "is a file"
    elif Path.cwd().is_relative_to(target.resolve()):
        reason = "is the folder that this command runs in, or holds it"
    elif (names := sorted(each.name for each in target.iterdir())) and marker not in names:
        reason = f"holds {names[0]} and no {marker}"
    elif names and marker == MANIFEST and (stranger := _find_stranger(target)):
        reason = f"holds {stranger}, which its {MANIFEST} does not list"
    if reason:
        raise ArtifactError(f"{target} {reason}, so it is not overwritten. Choose another folder.")


def _find_stranger(folder: Path) -> str:
    """A file in ``folder`` that is none of its artifact's; all are where it has no manifest."""
    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        known = {MANIFEST, _PARTIAL_MANIFEST, *listed}
    except (KeyError, TypeError, ValueError):
        known = {MANIFEST}
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    return min(found - known, default="")


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    partial = folder / _PARTIAL_MANIFEST
    with partial.open("w", encoding="utf-8") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / MANIFEST)


def _replace(target: Path, partial: Path) -> None:
    """Move ``partial`` to ``target``; the old folder is set aside first and removed last.

    A process killed between the two renames leaves no ``target``, and both folders beside it.
    """
    partial.chmod(0o755)  # mkdtemp makes it private
    if not target.exists():
        partial.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    target.rename(old / target.name)
    try:
        partial.rename(target)
    except OSError:
        (old / target.name).rename(target)
        old.rmdir()
        raise
    shutil.rmtree(old)


def _describe(path: Path) -> FileEntry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(digest, os.fstat(file.fileno()).st_size)
