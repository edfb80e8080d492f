"""Requantizing an artifact: an int8 artifact from a float one, without its checkpoint or torch.

    matrices in float32 again, tables rounded -> measured on sentences -> int8 products, also within
        the branches of early exits, and int8 tables -> compared with the source, at every depth

Where there is a checkpoint, `model.export.checkpoint` gives better weights: here those that are
stored as int8 already are rounded a second time.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import onnx

from s2sent.model.artifact.errors import ArtifactError
from s2sent.model.artifact.manifest import MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import seal, staged
from s2sent.model.export import graph
from s2sent.model.export.early_exit import without_exits
from s2sent.model.export.int8.calibration import MEASURED_AT_ONCE, measure_tokens
from s2sent.model.export.int8.products import multiply_as_int8
from s2sent.model.export.int8.storage import fold_int8, round_tables, store_int8
from s2sent.model.export.parity import (
    ParityError,
    ParityReport,
    check_parity,
    parity_by_depth,
    parity_sentences,
)
from s2sent.model.runtime.encoder import OnnxEncoder


class ConversionError(Exception):
    """The artifact cannot be converted to int8; the message says why and what to do."""


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
    model = _convert_graph(source, encoder, sentences)
    with staged(target, overwrite=overwrite) as folder:
        for file in source.manifest.files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            if file != MODEL:
                (folder / file).write_bytes(source.read(file))
        graph.save(model, str(folder / MODEL))
        manifest = replace(
            source.manifest,
            name=name or source.manifest.name,
            precision="int8",
            exact_without_vnni=True,
            scores={},
            by_depth={},
            files={},
            versions=source.manifest.versions | {"onnxruntime": version("onnxruntime")},
        )
        served = OnnxEncoder(Artifact(folder, manifest))

        def compare(depth: int | None = None) -> ParityReport:
            before = encoder.encode(sentences, depth=depth)
            encode = partial(served.encode, batch_size=len(sentences), depth=depth)
            return check_parity("int8", sentences, onnx=encode, torch=before, unrounded=before)

        seal(folder, replace(manifest, parity=parity_by_depth(manifest.depths, compare)))
    return Artifact.open(target)


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
    """What ``s2sent serve --precision int8`` runs as a process; exits with a sentence on failure.

    ``fingerprint`` is the source's, which is refused where it has another one meanwhile.
    """
    try:
        opened = Artifact.open(source)
        if opened.fingerprint != fingerprint:
            raise ConversionError(f"{source} was replaced during the start. Start again.")
        convert_to_int8(opened, Path(target), overwrite=True)
    except OSError as error:
        sys.exit(f"{target} cannot be written: {error.strerror}. Choose another folder.")
    except (ArtifactError, ConversionError, ParityError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
