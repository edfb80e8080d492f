"""Tells a folder that holds a backbone alone, which is no encoder, without loading a library."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from s2sent.model.artifact.manifest import MANIFEST

MODULES_FILE = "modules.json"  # where sentence-transformers lists the modules of a checkpoint
OTHERS = (MODULES_FILE, MANIFEST, "adapter_config.json")
WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZERS = ("tokenizer.json", "vocab.*", "*.model")
NOT_LOADED = {"auto_map", "quantization_config", "compression_config"}  # and refused by name


def told_of_bare(folder: Path) -> str | None:
    """What to say of a folder with a whole backbone and no pooling; None for any other folder."""
    config = settings_in(folder / "config.json")
    if any((folder / name).is_file() for name in OTHERS) or not all(
        any(next(folder.glob(pattern), None) for pattern in patterns)
        for patterns in (WEIGHTS, TOKENIZERS)
    ):
        return None
    if "model_type" not in config or NOT_LOADED & config.keys():
        return None
    cure = (
        f"let sentence-transformers add mean pooling, by SentenceTransformer({str(folder)!r})"
        ".save(NEW_FOLDER), and name that folder, or train it with s2sent-train fit"
        if _pads(folder, config)
        else "as its tokenizer has no padding token, train it with s2sent-train fit and a template"
        " in [backbone]"
    )
    return (
        f"{folder} holds a backbone alone, and nothing says how its tokens are pooled"
        f" ({MODULES_FILE}): {cure}."
    )


def _pads(folder: Path, config: dict[str, Any]) -> bool:
    """Whether texts of several lengths can be read together, which decoders mostly cannot."""
    named = (
        settings_in(folder / f"{name}.json") for name in ("tokenizer_config", "special_tokens_map")
    )
    return config.get("pad_token_id") is not None or any(each.get("pad_token") for each in named)


def settings_in(path: Path) -> dict[str, Any]:
    """The JSON object in a file; none where it cannot be read, which whoever loads it reports."""
    with suppress(ValueError, OSError, RecursionError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}
