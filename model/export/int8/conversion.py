"""Converting an artifact to int8, without its checkpoint or torch.

    matrices in float32 again, tables rounded -> measured on sentences -> int8 products, also within
        the branches of early exits, and int8 tables -> compared with the source, at every depth

Where there is a checkpoint, `model.export.checkpoint` gives better weights: here those that are
stored as int8 already are rounded a second time.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx

from s2sent.model.artifact.manifest import MODEL, Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.model.export import graph
from s2sent.model.export.conversion import ConversionError, run_converter, write_converted
from s2sent.model.export.early_exit import without_exits
from s2sent.model.export.int8.calibration import MEASURED_AT_ONCE, measure_tokens
from s2sent.model.export.int8.products import multiply_as_int8
from s2sent.model.export.int8.storage import fold_int8, round_tables, store_int8
from s2sent.model.export.parity import parity_sentences
from s2sent.model.runtime.encoder import OnnxEncoder


def convert_to_int8(
    source: Artifact,
    target: Path,
    *,
    name: str = "",
    sentences: Sequence[str] = (),
    overwrite: bool = False,
) -> Artifact:
    """Write ``source`` to ``target`` with int8 products; its canary is kept, its scores are not.

    Channels are measured and parity is checked on ``sentences``, the built-in ones when empty.
    Raises `ConversionError`, `model.export.parity.ParityError` or
    `model.artifact.errors.ArtifactError`, and then leaves ``target`` as it was.
    """
    _require_convertible(source)
    sentences = list(sentences or parity_sentences())
    encoder = OnnxEncoder(source)

    def write(folder: Path) -> Manifest:
        graph.save(_convert_graph(source, encoder, sentences), str(folder / MODEL))
        return replace(
            source.manifest,
            name=name or source.manifest.name,
            precision="int8",
            exact_without_vnni=True,
            scores={},
            by_depth={},
        )

    return write_converted(
        encoder, target, write, replaces=(MODEL,), sentences=sentences, overwrite=overwrite
    )


def _convert_graph(
    source: Artifact, encoder: OnnxEncoder, sentences: Sequence[str]
) -> onnx.ModelProto:
    """The source's graph with int8 products, its channels measured on ``sentences``."""
    rows = [row.input_ids for row in encoder.tokenizer.tokenize(sentences)]
    batches = [
        encoder.inputs(rows[start : start + MEASURED_AT_ONCE])
        for start in range(0, len(rows), MEASURED_AT_ONCE)
    ]
    model = onnx.load_from_string(source.read(MODEL))
    fold_int8(model)
    round_tables(model)
    if not multiply_as_int8(model.graph, measure_tokens(without_exits(model), batches)):
        raise ConversionError(f"{source.path} has no product that int8 suits. Serve it as it is.")
    store_int8(model, tables_only=True)
    return model


def _require_convertible(source: Artifact) -> None:
    manifest = source.manifest
    if not manifest.converts_to_int8:
        raise ConversionError(
            f"{source.path} is {manifest.form}: int8 needs a packed fp32 or weight-int8 artifact in"
            " one file. Export the checkpoint instead."
        )


def main(source: str, target: str, fingerprint: str) -> None:
    """What ``s2sent serve --precision int8`` runs as a process, as `run_converter`."""
    convert = partial(convert_to_int8, target=Path(target), overwrite=True)
    run_converter(source, target, fingerprint, convert)


if __name__ == "__main__":
    main(*sys.argv[1:])
