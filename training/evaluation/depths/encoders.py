"""Opens an artifact, or a checkpoint with exits, as one function of texts for each depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.training.backbones import resolve
from s2sent.training.errors import EncoderError
from s2sent.training.evaluation.depths.embeddings import encode_exits
from s2sent.training.evaluation.encoders import (
    artifact_encode,
    by_prompt,
    is_artifact,
    open_torch,
)
from s2sent.training.evaluation.sts import CachedEncode, Encode, each_role

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class DepthEncoders:
    """An encoder at each of its depths, full depth last; a text is embedded once."""

    at: Mapping[int, Encode]  # embeddings [n, width] of n >= 1 texts, by depth
    width: int


def open_depths(path: Path) -> DepthEncoders:
    """Open the artifact or checkpoint at ``path``.

    Raises `ArtifactError`, and `EncoderError` for what is neither or has no depth but its full one.
    """
    if is_artifact(Path(resolve(str(path)))):
        return artifact_depths(open_artifact(path))
    return checkpoint_depths(open_torch(str(path)), path)


def open_artifact(path: Path) -> OnnxEncoder:
    """The artifact at ``path`` with one thread. Raises as `open_depths` does for an artifact."""
    artifact = Artifact.open(path)
    if not artifact.manifest.depths:
        raise EncoderError(
            f"{path} can only run to its full depth. Export its checkpoint with --depths."
        )
    return OnnxEncoder(artifact, intra_op_num_threads=1)


def artifact_depths(encoder: OnnxEncoder) -> DepthEncoders:
    """An artifact's encoder at each depth, of which each is a run of its own."""
    manifest = encoder.artifact.manifest
    encoders: dict[int, Encode] = {}
    for depth in manifest.all_depths:
        at = None if depth == manifest.full_depth else depth
        encoders[depth] = CachedEncode(artifact_encode(encoder, depth=at))
    return DepthEncoders(encoders, encoder.dim)


def checkpoint_depths(encoder: "SentenceTransformer", path: Path) -> DepthEncoders:
    """The exits and full depth of the checkpoint at ``path``, all from one pass over its blocks."""
    from s2sent.model.network.encoder import find_selector

    selector = find_selector(encoder)
    if selector is None or not selector.config.exits:
        raise EncoderError(
            f"{path} has no exits with selectors of their own. Train it with [elastic], or export "
            "it with --depths and name the artifact."
        )
    exits = selector.config.exits

    def every_depth(prompt_name: str | None) -> Encode:  # [n, depths, width]
        def encode(texts: Sequence[str], /) -> NDArray[np.float32]:
            of_depths = encode_exits(encoder, texts, exits, prompt_name=prompt_name)
            return np.stack([*of_depths.values()], axis=1)

        return encode

    cached = CachedEncode(by_prompt(encoder.prompts, every_depth))

    def in_column(place: int, encode: Encode) -> Encode:
        return lambda texts: encode(texts)[:, place]

    full = int(cast(Any, encoder[0]).auto_model.config.num_hidden_layers)
    encoders = {
        depth: each_role(cached, partial(in_column, place))
        for place, depth in enumerate([*exits, full])
    }
    return DepthEncoders(encoders, selector.config.width)
