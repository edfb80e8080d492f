"""Opening the artifact that is served: as it lies there, or converted to int8 and kept in a cache.

The converter is a process of its own: what it imports and allocates never enters the service.
"""

import fcntl
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

import s2sent
from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.manifest import Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.service.settings import Settings

logger = logging.getLogger(__name__)

CONVERTER = "s2sent.model.export.requantize"
CONVERSION = 3  # goes up when the converter makes something else of the same artifact
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
        return _cached(entry) or _convert(source, entry)
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


def _cached(entry: Path) -> Artifact | None:
    """What is in the cache, None where that is nothing or damaged."""
    try:
        made = Artifact.open(entry, keep_graph=True)
    except ArtifactError:
        return None
    return made if made.manifest.precision == "int8" else None


def _convert(source: Artifact, entry: Path) -> Artifact:
    if find_spec("onnx") is None:
        raise Int8Unavailable(
            "conversion to int8 needs the package onnx, which is not installed. Install"
            " s2sent[cpu], or set precision to as_is."
        )
    try:
        with _locked(entry) as lock:
            if made := _cached(entry):  # by another process meanwhile
                return made
            for left in entry.parent.glob(f".{entry.name}.*/"):  # by a conversion that was killed
                shutil.rmtree(left)
            _run_converter(source, entry, lock)
            made = _cached(entry)
    except OSError as error:
        raise _unwritable(entry.parent, error.strerror or type(error).__name__) from None
    if made is None:
        raise _unwritable(entry.parent, "what was written there is not what is read")
    return made


@contextmanager
def _locked(entry: Path) -> Iterator[TextIO]:
    """Let one process at a time convert; the others wait for what it makes."""
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with entry.with_name(f"{entry.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def _run_converter(source: Artifact, entry: Path, lock: TextIO) -> None:
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
        pass_fds=(lock.fileno(),),
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"It ended with status {done.returncode}."]
        raise Int8Unavailable(f"Conversion to int8 failed: {said[-1]} Or set precision to as_is.")


def _unwritable(folder: Path, reason: str) -> Int8Unavailable:
    return Int8Unavailable(
        f"{folder} cannot keep the conversion to int8: {reason.lower()}. Set S2SENT_INT8_CACHE to a"
        " folder that can be written, or precision to as_is."
    )
