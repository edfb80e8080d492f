"""Finds the folder of a model: one that is here, or what the Hugging Face hub has by that name."""

import re
from functools import partial
from pathlib import Path

from sentence_transformers.util.misc import ORIGINAL_TRANSFORMER_MODELS

from s2sent.model.network.loading.checkpoint import CheckpointError, first_line

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
# Weights, configurations and vocabularies: no code, and nothing of other runtimes.
FETCHED = ["*.safetensors", "*.bin", "*.json", "*.txt", "*.model"]
OTHER_RUNTIMES = ["onnx/*", "openvino/*"]
PICKLED = "pytorch_model*.bin"  # of the backbone, which safetensors stand for where there are any


def local_folder(name: str | Path) -> Path:
    """The folder of a model; one that is not here is fetched, where ``name`` may be a hub id.

    Raises `CheckpointError` for a path that does not exist, and where the hub does not give it.
    """
    folder = Path(name)
    if folder.exists() or not may_be_hub_id(str(name)):
        return folder
    try:
        fetched = _fetch(full_name(str(name)))
    except (OSError, ValueError) as error:  # huggingface_hub's own are of these kinds
        raise CheckpointError(
            f"{name} is no folder here and could not be fetched from the hub: check the name or"
            f" the connection ({first_line(error)})."
        ) from error
    return fetched


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download

    fetch = partial(snapshot_download, name, allow_patterns=FETCHED)
    folder = Path(fetch(ignore_patterns=[*OTHER_RUNTIMES, PICKLED]))
    if not any(folder.glob("*.safetensors")):
        folder = Path(fetch(ignore_patterns=OTHER_RUNTIMES))
    return folder


def may_be_hub_id(name: str) -> bool:
    """Whether a name that is no folder here is one of a hub, and not a path that is missing."""
    owner, slash, _ = name.partition("/")
    return HUB_ID.fullmatch(name) is not None and not (slash and Path(owner).is_dir())


def full_name(name: str) -> str:
    """A hub id with its owner, as sentence-transformers completes it: its own models need none."""
    if "/" in name or name.lower() in ORIGINAL_TRANSFORMER_MODELS:
        return name
    return f"sentence-transformers/{name}"
