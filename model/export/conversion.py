"""What conversions of an artifact into another form share: without its checkpoint or torch.

the source's other files -> what a converter writes -> compared with the source at every depth
"""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from s2sent.model.artifact.errors import ArtifactError, UserError
from s2sent.model.artifact.manifest import PARAMETERS, Manifest
from s2sent.model.artifact.reader import Artifact
from s2sent.model.artifact.writer import seal, staged
from s2sent.model.export.companions import copy_files
from s2sent.model.export.parity import ParityError, ParityReport, check_parity, parity_by_depth
from s2sent.model.runtime.encoder import OnnxEncoder


class ConversionError(UserError):
    """The artifact cannot be converted; the message says why and what to do."""


def write_converted(
    source: OnnxEncoder,
    target: Path,
    write: Callable[[Path], Manifest],
    *,
    replaces: Collection[str],
    sentences: Sequence[str],
    overwrite: bool,
) -> Artifact:
    """Write to ``target`` the artifact of ``source`` with what ``write`` makes of the files it
    ``replaces``, and returns the manifest of.

    The result is compared with the source on ``sentences``, on the CPU. Raises
    `model.export.parity.ParityError` or `model.artifact.errors.ArtifactError`, and then leaves
    ``target`` as it was.
    """
    artifact = source.artifact
    with staged(target, overwrite=overwrite) as folder:
        copy_files(artifact, folder, but=(*replaces, PARAMETERS))  # which are of its graph
        written = write(folder)
        versions = artifact.manifest.versions | {"onnxruntime": version("onnxruntime")}
        manifest = replace(written, files={}, versions=versions)
        served = OnnxEncoder(Artifact(folder, manifest))

        def compare(depth: int | None = None) -> ParityReport:
            before = source.encode(sentences, depth=depth)
            encode = partial(served.encode, batch_size=len(sentences), depth=depth)
            return check_parity(
                manifest.precision, sentences, onnx=encode, torch=before, unrounded=before
            )

        seal(folder, replace(manifest, parity=parity_by_depth(manifest.depths, compare)))
    return Artifact.open(target)


def run_converter(
    source: str, target: str, fingerprint: str, convert: Callable[[Artifact], object]
) -> None:
    """What the service runs as a process; exits with a sentence on failure.

    ``fingerprint`` is the source's, which is refused where it has another one meanwhile.
    """
    try:
        opened = Artifact.open(source)
        if opened.fingerprint != fingerprint:
            raise ConversionError(f"{source} was replaced during the start. Start again.")
        convert(opened)
    except OSError as error:
        sys.exit(f"{target} cannot be written: {error.strerror}. Choose another folder.")
    except (ArtifactError, ConversionError, ParityError) as error:
        sys.exit(str(error))
