"""Converting an artifact for a GPU: a graph for each depth, in float16 or float32, one for all
weights, without its checkpoint or torch.

    matrices in floats again -> at each depth: the depth's nodes -> operators that a GPU runs well
        [-> float16] -> its graph, beside the others' weights [-> and with unpadded attention]
    -> compared with the source on the CPU, at every depth
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from s2sent.model.artifact.manifest import MODEL, WEIGHTS, Manifest
from s2sent.model.artifact.reader import Artifact, graph_at
from s2sent.model.export import graph
from s2sent.model.export.conversion import ConversionError, run_converter, write_converted
from s2sent.model.export.gpu.depths import drop_unmade, keep_depth
from s2sent.model.export.gpu.half import round_to_half
from s2sent.model.export.gpu.operators import avoid
from s2sent.model.export.gpu.unpadded import unpad
from s2sent.model.export.gpu.weights import SharedWeights, load_model
from s2sent.model.export.int8.storage import fold_int8
from s2sent.model.export.nodes import sort
from s2sent.model.export.parity import ParityError, parity_sentences
from s2sent.model.runtime.encoder import BLOCK_WEIGHTS_OUTPUT, POOLED_OUTPUT, OnnxEncoder

OUTPUTS = (POOLED_OUTPUT, BLOCK_WEIGHTS_OUTPUT)  # that are asked for


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

    def write(folder: Path) -> Manifest:
        try:
            inputs = _write_graphs(source, folder, precision)
        except graph.GraphError as error:
            raise ConversionError(
                f"the graph of {_named(source)} is not for a GPU: {error}."
            ) from None
        made = replace(source.manifest, precision=precision, inputs=inputs)
        return made if precision == "fp32" else replace(made, scores={}, by_depth={})

    return write_converted(
        OnnxEncoder(source),
        target,
        write,
        replaces=(MODEL, WEIGHTS),
        sentences=sentences,
        overwrite=overwrite,
    )


def _write_graphs(source: Artifact, folder: Path, precision: str) -> tuple[str, ...]:
    """Write the graphs for each depth, and their weights; returns the inputs of padded ones."""
    model = load_model(source)
    fold_int8(model)
    manifest = source.manifest
    weights = SharedWeights((folder / MODEL).parent)
    inputs: dict[str, None] = {}
    for depth in (*manifest.depths, None):
        made = _graph_of(model, manifest, depth, precision)
        inputs |= dict.fromkeys(each.name for each in made.graph.input)
        weights.move(made)
        _save(made, folder / graph_at(depth))
        if unpad(made.graph):
            _save(made, folder / graph_at(depth, unpadded=True))
    return tuple(inputs)


def _save(model: onnx.ModelProto, path: Path) -> None:
    onnx.save(model, str(path))
    onnx.checker.check_model(str(path))


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
    sort(made.graph)
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
    """What ``s2sent serve --device cuda`` runs as a process, as `run_converter`."""

    def convert(opened: Artifact) -> None:
        try:
            convert_for_gpu(opened, Path(target), precision, overwrite=True)
        except ParityError as error:
            raise ConversionError(f"{_named(opened)} in {precision}: {error}") from None

    run_converter(source, target, fingerprint, convert)


if __name__ == "__main__":
    main(*sys.argv[1:])
