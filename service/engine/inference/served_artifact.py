"""Opening the artifact that is served: as it lies there, or converted and kept in a cache.

    CPU, as_is               as it lies there
    CPU, int8                model.export.int8.conversion
    GPU, fp16, fp32, as_is   model.export.gpu.conversion; as_is in the artifact's own precision

The converter is a process of its own: what it imports and allocates never enters the service.
"""

import dataclasses
import logging
import shutil
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.manifest import PARAMETERS, WEIGHTS, Manifest
from s2sent.model.artifact.reader import Artifact, graph_at
from s2sent.service.engine.inference.private_cache import (
    cache_folder,
    is_private,
    locked,
    run_module,
    written_by_others,
)
from s2sent.service.engine.inference.start_step import start_step
from s2sent.service.settings import Settings

logger = logging.getLogger(__name__)

CONVERTERS = {
    "cpu": "s2sent.model.export.int8.conversion",
    "cuda": "s2sent.model.export.gpu.conversion",
}
# Each goes up when the converter makes something else of the same artifact.
CONVERSION = {"int8": "4", "fp16": "fp16-2", "fp32": "fp32-2"}
# What a conversion changes in a manifest.
CONVERTED_FIELDS = ("precision", "exact_without_vnni", "scores", "by_depth", "parity", "versions")
CONVERTED_FOR_GPU = (*CONVERTED_FIELDS, "inputs")


class ConversionUnavailable(ArtifactError):
    """The artifact cannot be served in this precision; the message says why and what to do."""


def open_artifact(settings: Settings) -> Artifact:
    """The artifact in the precision that the settings ask for, its graph kept.

    One that is int8 or for a GPU already is served as it is, and on a CPU with ``precision`` auto
    one that cannot be converted. Raises ArtifactError.
    """
    source = Artifact.open(settings.artifact, keep_graph=True)
    target = _target(settings, source.manifest)
    if not target:
        return source
    if obstacle := int8_obstacle(settings, source.manifest):
        if settings.precision == "auto":
            return source
        raise ConversionUnavailable(
            f"precision is int8, and {obstacle}. Set precision to auto or as_is."
        )
    source.take_graph()  # another one is served
    try:
        entry = _cache_folder(settings) / f"{source.fingerprint}-{CONVERSION[target]}"
        _require_private(entry.parent)
        return _cached(entry, source, target) or _convert(source, entry, target)
    except ConversionUnavailable as error:
        if settings.precision != "auto" or target != "int8":
            raise
        logger.warning("%s The artifact is served as it is.", error)
        return Artifact.open(settings.artifact, keep_graph=True)


def _target(settings: Settings, manifest: Manifest) -> str:
    """The precision that the artifact is converted to, empty where it is served as it is."""
    if manifest.precision == "int8" or manifest.is_for_gpu:
        return ""
    if settings.device == "cpu":
        return "int8" if settings.precision in ("int8", "auto") else ""
    if settings.precision == "as_is":
        return "fp16" if manifest.precision == "fp16" else "fp32"
    return "fp32" if settings.precision == "fp32" else "fp16"


def int8_obstacle(settings: Settings, manifest: Manifest) -> str:
    """Why this artifact cannot be served in int8 here, empty where it can."""
    if manifest.precision == "int8" or settings.device != "cpu":
        return ""
    if not manifest.converts_to_int8:
        return (
            f"{settings.artifact} is {manifest.form}:"
            " only a packed fp32 or weight-int8 artifact in one file is converted"
        )
    return ""


def _cache_folder(settings: Settings) -> Path:
    return settings.int8_cache.absolute() if settings.int8_cache else cache_folder("int8")


def _require_private(folder: Path) -> None:
    """Raise ConversionUnavailable where others may write: they could replace the model."""
    with suppress(OSError):  # it is made with the first entry, or the error is told then
        if reason := written_by_others(folder):
            raise _unwritable(folder, reason)


def _cached(entry: Path, source: Artifact, target: str) -> Artifact | None:
    """What is in the cache, None where that is nothing, damaged or of another artifact or user."""
    try:
        if not is_private(entry):
            return None
        made = Artifact.open(entry, keep_graph=True)
    except (ArtifactError, OSError):
        return None
    is_target = made.manifest.precision == target and made.manifest.is_for_gpu == (target != "int8")
    if is_target and _said(made, source) == _said(source, source):
        return made
    return None


def _said(artifact: Artifact, source: Artifact) -> Manifest:
    """What a conversion leaves as it is in ``source``: the canary is a file."""
    changed = CONVERTED_FOR_GPU if artifact.manifest.is_for_gpu else CONVERTED_FIELDS
    same = {name: getattr(source.manifest, name) for name in changed}
    depths = (None, *artifact.manifest.depths)
    graphs = {graph_at(depth, unpadded=form) for depth in depths for form in (False, True)}
    graphs |= {WEIGHTS, PARAMETERS}  # the latter tells of the source's graph
    files = {name: entry for name, entry in artifact.manifest.files.items() if name not in graphs}
    return dataclasses.replace(artifact.manifest, files=files, **same)


def _convert(source: Artifact, entry: Path, target: str) -> Artifact:
    if find_spec("onnx") is None:
        otherwise = ", or set precision to as_is" if target == "int8" else ""
        raise ConversionUnavailable(
            f"conversion to {target} needs the package onnx, which is not installed. Run"
            f" {sys.executable} -m pip install onnx{otherwise}."
        )
    try:
        with locked(entry) as lock:
            if made := _cached(entry, source, target):  # by another process meanwhile
                return made
            for left in entry.parent.glob(f".{entry.name}.*/"):  # by a conversion that was killed
                shutil.rmtree(left)
            since = time.monotonic()
            with start_step(f"converting {source.path} to {target}, kept in {entry}"):
                _run_converter(source, entry, target, lock)
            logger.info("converted to %s in %.1f s", target, time.monotonic() - since)
            made = _cached(entry, source, target)
    except OSError as error:
        raise _unwritable(entry.parent, error.strerror or type(error).__name__) from None
    if made is None:
        raise _unwritable(entry.parent, "what was written there is not what is read")
    return made


def _run_converter(source: Artifact, entry: Path, target: str, lock: int) -> None:
    failure = run_module(
        CONVERTERS["cpu" if target == "int8" else "cuda"],
        source.path.absolute(),
        entry,
        source.fingerprint,
        *([] if target == "int8" else [target]),
        lock=lock,
    )
    if failure:
        other = {"int8": "as_is", "fp16": "fp32"}.get(target)
        cure = f" Or set precision to {other}." if other else ""
        raise ConversionUnavailable(f"Conversion to {target} failed: {failure}{cure}")


def _unwritable(folder: Path, reason: str) -> ConversionUnavailable:
    return ConversionUnavailable(
        f"{folder} cannot keep the conversion: {reason.lower()}. Set S2SENT_INT8_CACHE to a folder"
        " that this user alone can write, or on a CPU precision to as_is."
    )
