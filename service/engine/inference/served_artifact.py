"""Opening the artifact that is served: as it lies there, or converted to int8 and kept in a cache.

The converter is a process of its own: what it imports and allocates never enters the service.
"""

import dataclasses
import fcntl
import logging
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import s2sent
from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.manifest import MODEL, Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.service.engine.inference.start_step import start_step
from s2sent.service.lock_files import open_lock_file
from s2sent.service.settings import Settings

logger = logging.getLogger(__name__)

CONVERTER = "s2sent.model.export.requantize"
CONVERSION = 3  # goes up when the converter makes something else of the same artifact
# What a conversion changes in a manifest.
CONVERTED_FIELDS = ("precision", "exact_without_vnni", "scores", "by_depth", "parity", "versions")
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
CODE = Path(s2sent.__file__).parents[1]  # where the converter is that belongs to this code


class Int8Unavailable(ArtifactError):
    """The artifact cannot be served in int8; the message says why and what to do."""


def open_artifact(settings: Settings) -> Artifact:
    """The artifact in the precision that the settings ask for, its graph kept.

    One that is int8 already is served as it is, and with ``precision`` auto one that cannot be
    converted. Raises ArtifactError.
    """
    source = Artifact.open(settings.artifact, keep_graph=True)
    if settings.precision == "as_is" or source.manifest.precision == "int8":
        return source
    if obstacle := int8_obstacle(settings, source.manifest):
        if settings.precision == "auto":
            return source
        raise Int8Unavailable(f"precision is int8, and {obstacle}. Set precision to auto or as_is.")
    source.take_graph().close()  # another one is served
    try:
        entry = _cache_folder(settings) / f"{source.fingerprint}-{CONVERSION}"
        _require_private(entry.parent)
        return _cached(entry, source) or _convert(source, entry)
    except Int8Unavailable as error:
        if settings.precision == "int8":
            raise
        logger.warning("%s The artifact is served as it is.", error)
        return Artifact.open(settings.artifact, keep_graph=True)


def int8_obstacle(settings: Settings, manifest: Manifest) -> str:
    """Why this artifact cannot be served in int8 here, empty where it can."""
    if manifest.precision == "int8":
        return ""
    if settings.device != "cpu":
        return f"int8 is for a CPU, not for {settings.device}"
    if not manifest.converts_to_int8:
        return (
            f"{settings.artifact} is {manifest.form}:"
            " only a packed fp32 or weight-int8 artifact in one file is converted"
        )
    return ""


def _cache_folder(settings: Settings) -> Path:
    """The folder of the setting, or that of the XDG Base Directory Specification."""
    if settings.int8_cache:
        return settings.int8_cache.absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        base = Path(os.path.expanduser("~"), ".cache")
    folder = base / "s2sent" / "int8"
    if not base.is_absolute():  # neither HOME nor an account names one
        raise _unwritable(folder, "this user has no home folder")
    return folder


def _require_private(folder: Path) -> None:
    """Raise Int8Unavailable for a cache that others may write: they could replace the model."""
    try:
        found = folder.stat()
    except OSError:  # it is made with the first entry, or the error is told then
        return
    if _others_may_write(found):
        raise _unwritable(
            folder,
            f"others may write it (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o})",
        )


def _others_may_write(found: os.stat_result) -> bool:
    return found.st_uid not in (0, os.geteuid()) or bool(found.st_mode & OTHERS_MAY_WRITE)


def _cached(entry: Path, source: Artifact) -> Artifact | None:
    """What is in the cache, None where that is nothing, damaged or of another artifact or user."""
    try:
        if any(_others_may_write(part.stat()) for part in (entry, *entry.rglob("*"))):
            return None
        made = Artifact.open(entry, keep_graph=True)
    except (ArtifactError, OSError):
        return None
    if made.manifest.precision == "int8" and _said(made, source) == _said(source, source):
        return made
    made.take_graph().close()
    return None


def _said(artifact: Artifact, source: Artifact) -> Manifest:
    """What a conversion leaves as it is in ``source``: the canary is a file."""
    same = {name: getattr(source.manifest, name) for name in CONVERTED_FIELDS}
    files = {name: entry for name, entry in artifact.manifest.files.items() if name != MODEL}
    return dataclasses.replace(artifact.manifest, files=files, **same)


def _convert(source: Artifact, entry: Path) -> Artifact:
    if find_spec("onnx") is None:
        raise Int8Unavailable(
            "conversion to int8 needs the package onnx, which is not installed. Run"
            f" {sys.executable} -m pip install onnx, or set precision to as_is."
        )
    try:
        with _locked(entry) as lock:
            if made := _cached(entry, source):  # by another process meanwhile
                return made
            for left in entry.parent.glob(f".{entry.name}.*/"):  # by a conversion that was killed
                shutil.rmtree(left)
            since = time.monotonic()
            with start_step(f"converting {source.path} to int8, kept in {entry}"):
                _run_converter(source, entry, lock)
            logger.info("converted to int8 in %.1f s", time.monotonic() - since)
            made = _cached(entry, source)
    except OSError as error:
        raise _unwritable(entry.parent, error.strerror or type(error).__name__) from None
    if made is None:
        raise _unwritable(entry.parent, "what was written there is not what is read")
    return made


@contextmanager
def _locked(entry: Path) -> Iterator[int]:
    """Let one process at a time convert; the others wait for what it makes."""
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open_lock_file(entry.with_name(f"{entry.name}.lock"), 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _run_converter(source: Artifact, entry: Path, lock: int) -> None:
    """Run the converter, which has the lock too: it stays locked where only this process ends."""
    command: list[str | Path] = [
        sys.executable,
        "-m",
        CONVERTER,
        source.path.absolute(),
        entry,
        source.fingerprint,
    ]
    done = subprocess.run(  # noqa: S603  # this Python, with folders as arguments
        command,
        cwd=CODE,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        pass_fds=(lock,),
        umask=0o077,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"It ended with status {done.returncode}."]
        raise Int8Unavailable(f"Conversion to int8 failed: {said[-1]} Or set precision to as_is.")


def _unwritable(folder: Path, reason: str) -> Int8Unavailable:
    return Int8Unavailable(
        f"{folder} cannot keep the conversion to int8: {reason.lower()}. Set S2SENT_INT8_CACHE to a"
        " folder that this user alone can write, or precision to as_is."
    )
