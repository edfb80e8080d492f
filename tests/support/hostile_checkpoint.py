"""Checkpoints whose files would run code, which leaves a file behind where it was run."""

import json
import pickle
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from tests.support.tiny import tiny_backbone

WIDTH = 32


class Payload:
    """A pickle of it makes the folder ``trace`` when it is opened with ``weights_only`` off."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.mkdir, (str(self.trace),)


def plain_checkpoint(folder: Path) -> Path:
    """A two-block BERT with mean pooling, as the library saves it, at ``folder``."""
    backbone = tiny_backbone(folder.with_name(f"{folder.name}.backbone"), num_layers=2)
    modules = [Transformer(str(backbone)), Pooling(WIDTH)]
    SentenceTransformer(modules=modules).save(str(folder), create_model_card=False)
    return folder


def with_pickle(folder: Path, trace: Path) -> Path:
    """The folder with a pickle in place of its weights, which makes ``trace`` if it is opened."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(
        pickle.dumps(Payload(trace), protocol=2)
    )  # torch's own
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file, or make it."""
    before = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(before | changes), encoding="utf-8")
