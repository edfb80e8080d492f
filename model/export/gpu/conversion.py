"""Converting an artifact for a GPU: a graph for each depth, in float16 or float32, one for all
weights, without its checkpoint or torch.

    matrices in floats again -> at each depth: the depth's nodes -> operators that a GPU runs well
        [-> float16] -> its graph, beside the others' weights
    -> compared with the source on the CPU, at every depth
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import onnx

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.manifest import MODEL, WEIGHTS, Manifest
from s2sent.model.artifact.reader import Artifact, graph_at
from s2sent.model.artifact.writer import seal, staged
from s2sent.model.export import graph
from s2sent.model.export.gpu.depths import drop_unmade, keep_depth
from s2sent.model.export.gpu.half import round_to_half
from s2sent.model.export.gpu.operators import avoid
from s2sent.model.export.gpu.weights import SharedWeights, load_model
from s2sent.model.export.int8.storage import fold_int8
from s2sent.model.export.parity import (
    ParityError,
    ParityReport,
    check_parity,
    parity_by_depth,
    parity_sentences,
)
from s2sent.model.runtime.encoder import BLOCK_WEIGHTS_OUTPUT, POOLED_OUTPUT, OnnxEncoder

OUTPUTS = (POOLED_OUTPUT, BLOCK_WEIGHTS_OUTPUT)  # that are asked for


class ConversionError(Exception):
    """The artifact cannot be converted for a GPU; the message says why and what to do."""


def convert_for_gpu(
    source: Artifact,
    target: Path,
    precision: str,
    *,
    sentences: Sequence[str] = (),
    overwrite: bool = False,
) -> Artifact:
    """Write ``source`` to ``target`` for a GPU in ``precision``, fp16 or fp32; its canary is
    kept, its scores are in fp32, whose vectors are the same.

    The result is compared with the source on ``sentences``, the built-in ones when empty, on the
    CPU. Raises `ConversionError`, `model.export.parity.ParityError` or
    `model.artifact.errors.ArtifactError`, and then leaves ``target`` as it was.
    """
    _require_convertible(source, precision)
    sentences = list(sentences or parity_sentences())
    encoder = OnnxEncoder(source)
    with staged(target, overwrite=overwrite) as folder:
        for file in source.manifest.files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            if file not in (MODEL, WEIGHTS):
                (folder / file).write_bytes(source.read(file))
        try:
            inputs = _write_graphs(source, folder, precision)
        except graph.GraphError as error:
            raise ConversionError(
                f"the graph of {_named(source)} is not for a GPU: {error}."
            ) from None
        manifest = replace(
            source.manifest,
            precision=precision,
            inputs=inputs,
            scores=source.manifest.scores if precision == "fp32" else {},
            by_depth=source.manifest.by_depth if precision == "fp32" else {},
            files={},
            versions=source.manifest.versions | {"onnxruntime": version("onnxruntime")},
        )
        served = OnnxEncoder(Artifact(folder, manifest))

        def compare(depth: int | None = None) -> ParityReport:
            before = encoder.encode(sentences, depth=depth)
            encode = partial(served.encode, batch_size=len(sentences), depth=depth)
            return check_parity(precision, sentences, onnx=encode, torch=before, unrounded=before)

        seal(folder, replace(manifest, parity=parity_by_depth(manifest.depths, compare)))
    return Artifact.open(target)


def _write_graphs(source: Artifact, folder: Path, precision: str) -> tuple[str, ...]:
    """Write a graph for each depth, and their weights; returns their inputs."""
    model = load_model(source)
    fold_int8(model)
    manifest = source.manifest
    weights = SharedWeights((folder / MODEL).parent)
    inputs: dict[str, None] = {}
    for depth in (*manifest.depths, None):
        made = _graph_of(model, manifest, depth, precision)
        inputs |= dict.fromkeys(each.name for each in made.graph.input)
        weights.move(made)
        path = str(folder / graph_at(depth))
        onnx.save(made, path)
        onnx.checker.check_model(path)
    return tuple(inputs)


def _graph_of(
    model: onnx.ModelProto, manifest: Manifest, depth: int | None, precision: str
) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    at = (depth or manifest.full_depth) if manifest.depths else None
    keep_depth(made.graph, at, OUTPUTS)
    avoid(made)
    drop_unmade(made.graph)
    if precision == "fp16" and manifest.precision != "fp16":
        made = round_to_half(made)
    graph.sort(made.graph)
    return made


def _require_convertible(source: Artifact, precision: str) -> None:
    has = source.manifest.precision
    if has == "int8" or (has == "fp16" and precision != "fp16"):
        raise ConversionError(
            f"{source.path} is {has}, of which no {precision} is made for a GPU. Export the"
            " checkpoint as fp32 or weight-int8."
        )


def _named(source: Artifact) -> str:
    return f"{source.path} (a {source.manifest.backbone.get('architecture', 'backbone')})"


def main(source: str, target: str, fingerprint: str, precision: str) -> None:
    """What ``s2sent serve --device cuda`` runs as a process; exits with a sentence on failure.

    ``fingerprint`` is the source's, which is refused where it has another one meanwhile.
    """
    try:
        opened = Artifact.open(source)
        if opened.fingerprint != fingerprint:
            raise ConversionError(f"{source} was replaced during the start. Start again.")
        convert_for_gpu(opened, Path(target), precision, overwrite=True)
    except OSError as error:
        sys.exit(f"{target} cannot be written: {error.strerror}. Choose another folder.")
    except (ArtifactError, ConversionError) as error:
        sys.exit(str(error))
    except ParityError as error:
        sys.exit(f"{_named(opened)} in {precision}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
