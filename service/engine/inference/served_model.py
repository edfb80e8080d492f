"""The artifact of ``--model``: made once of a folder or a hub id, and kept in a cache.

an artifact's folder          served as it is
onnx/model.onnx in it         model.export.from_onnx.conversion, without torch
    a static table                the same
else, or where that refuses   s2sent-train export, where torch is installed
"""

import hashlib
import importlib.util
import json
import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.manifest import MANIFEST, MODEL
from s2sent.service.engine.inference.private_cache import (
    cache_folder,
    is_private,
    locked,
    run_module,
    written_by_others,
)
from s2sent.service.engine.inference.start_step import start_step

logger = logging.getLogger(__name__)

FORM = 1  # goes up when the export makes something else of the same model
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
FETCHED = [MODEL, f"{MODEL}_data", "*.json", "*/config.json"]  # never code, never pickles
STATIC_WEIGHTS = ["*.safetensors", "*/*.safetensors"]


class ModelUnavailable(ArtifactError):
    """The model cannot be served; the message says why and what to do."""


def artifact_of(model: str) -> Path:
    """The folder of the artifact of ``model``: a folder, a hub id, or a ``pypi:`` name.

    It is made where ``s2sent/models`` in the user's cache has none for the files of the model as
    they are now. Raises ModelUnavailable.
    """
    folder = Path(model).absolute() if Path(model).exists() else _snapshot(model)
    if folder is not None and (folder / MANIFEST).is_file():
        return folder
    entry = cache_folder("models") / _key(model, folder)
    if _is_kept(entry):
        return entry
    try:
        with locked(entry) as lock:
            if not _is_kept(entry):  # made by another process meanwhile
                with start_step(f"exporting {model} to {entry}"):
                    _make(model, folder, entry, lock)
    except OSError as error:
        raise ModelUnavailable(
            f"{entry.parent} cannot keep the exported model ({error.strerror}): set XDG_CACHE_HOME"
            " to a folder that can be written."
        ) from None
    return entry


def _is_kept(entry: Path) -> bool:
    """Whether the cache has it. Raises ModelUnavailable where others may write it there."""
    with suppress(OSError):  # nothing is there yet, or the error is told when it is made
        reason = written_by_others(entry.parent)
        if not reason and entry.is_dir() and not is_private(entry):
            reason = f"others may write {entry.name}"
        if reason:
            raise ModelUnavailable(
                f"{entry.parent} cannot keep the exported model: {reason}. Set XDG_CACHE_HOME to a"
                " folder that this user alone can write, or remove what others may write."
            )
    return (entry / MANIFEST).is_file()


def _key(model: str, folder: Path | None) -> str:
    """A name for the files of a model as they are now: of their names, sizes and times."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
    seen = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    digest = hashlib.sha256(json.dumps([FORM, model, seen]).encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', model).strip('-.')[-40:]}-{digest[:16]}"


def _make(model: str, folder: Path | None, entry: Path, lock: int) -> None:
    """Make the artifact of its own graph or table, else, where torch is installed, export it."""
    name = model.rstrip("/").rpartition("/")[2].removeprefix("pypi:")
    has_torch = importlib.util.find_spec("torch") is not None
    if folder is not None and ((folder / MODEL).is_file() or _is_static(folder)):
        try:
            module = "s2sent.model.export.from_onnx.conversion"
            _run([module, str(folder), str(entry), name], model, lock)
            return
        except ModelUnavailable as refusal:
            if not has_torch:
                raise
            logger.info("%s It is exported by torch instead.", refusal)
    elif not has_torch:
        raise ModelUnavailable(
            f"{model} has no {MODEL}, so it has to be exported, and torch is not installed. Run"
            f" `make train`, then `.venv/train/bin/s2sent-train export {model} runs/{name}` and"
            f" serve it with --artifact runs/{name}."
        )
    # Of a hub's model the folder has no weights: export fetches them by its name.
    source = str(folder) if Path(model).exists() else model
    _run(["s2sent.training", "export", source, str(entry), "--name", name], model, lock)


def _run(command: list[str], model: str, lock: int) -> None:
    if failure := run_module(*command, lock=lock):
        raise ModelUnavailable(f"{model} could not be exported: {failure}")


def _snapshot(model: str) -> Path | None:
    """What the hub has by this name, from its local cache where the graph lies there already.

    None for a ``pypi:`` name. Raises ModelUnavailable where neither has it.
    """
    if model.startswith("pypi:"):
        return None
    if not HUB_ID.fullmatch(model):
        raise ModelUnavailable(f"{model} is no folder and no hub id. Correct the path.")
    name = model if "/" in model else f"sentence-transformers/{model}"
    kept = _kept_snapshot(name)
    if kept is not None and ((kept / MODEL).is_file() or _is_static(kept)):
        return kept
    try:
        from huggingface_hub import snapshot_download

        with start_step(f"fetching {name} from the hub"):
            fetched = Path(snapshot_download(name, allow_patterns=FETCHED))
            if _is_static(fetched):
                snapshot_download(name, allow_patterns=STATIC_WEIGHTS)
        return fetched
    except ImportError:
        cure = f"Run {sys.executable} -m pip install huggingface_hub, or give a folder"
    except (OSError, ValueError) as error:  # huggingface_hub's own are of these kinds
        cure = f"Check the name or the connection ({str(error).strip().splitlines()[0]})"
    if kept is not None:
        return kept
    raise ModelUnavailable(f"{model} is no folder here and could not be fetched. {cure}.")


def _is_static(folder: Path) -> bool:
    """Whether it is a table of token vectors, as sentence-transformers and model2vec save one."""
    try:
        return ".StaticEmbedding" in (folder / "modules.json").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def _kept_snapshot(name: str) -> Path | None:
    """The main revision of a model in the hub's local cache, as huggingface_hub lays it out."""
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))
    folder = cache / f"models--{name.replace('/', '--')}"
    try:
        commit = (folder / "refs/main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None
