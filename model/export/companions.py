"""What stands beside the graph in an artifact, without torch: how it pools, a canary, copies."""

import json
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from s2sent.model.artifact.manifest import CANARY
from s2sent.model.artifact.reader import Artifact

CANARY_TEXT = "A canary sings while the air is good."
POOLING_FLAGS = {  # in 1_Pooling/config.json, by the pooling's name
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def write_pooling(folder: Path, width: int, modes: Collection[str]) -> None:
    """Write how states of ``width`` numbers are pooled, as other servers name it."""
    config = {"word_embedding_dimension": width}
    config |= {flag: mode in modes for flag, mode in POOLING_FLAGS.items()}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(config))


def write_canary(folder: Path, embedding: NDArray[np.float32]) -> None:
    """Write the text, and its embedding [dim] without a prompt, that a service checks at start."""
    canary = {"text": CANARY_TEXT, "embedding": [round(float(x), 8) for x in embedding]}
    (folder / CANARY).write_text(json.dumps(canary))


def copy_files(source: Artifact, folder: Path, *, but: Collection[str]) -> None:
    """Copy the files of an artifact, but for some, whose folders are made."""
    for name in source.manifest.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name not in but:
            (folder / name).write_bytes(source.read(name))
