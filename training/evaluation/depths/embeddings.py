"""Embeddings of texts at several depths of an encoder, from one pass over its blocks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BATCH_SIZE = 64


def encode_exits(
    encoder: "SentenceTransformer",
    texts: Sequence[str],
    depths: Sequence[int] = (),
    *,
    prompt_name: str | None = None,
) -> dict[int, NDArray[np.float32]]:
    """Embeddings [n, dim] of n >= 1 texts by depth: ``depths`` below full, and full depth.

    They are those that ``encoder.encode`` gives, in evaluation mode, with the prompt of this name,
    by default the encoder's default one.
    """
    from sentence_transformers.util import batch_to_device

    from s2sent.model.network.pooled import embed_exits

    encoder.eval()
    prompt = encoder.prompts.get(prompt_name or encoder.default_prompt_name or "")
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    parts: list[list[torch.Tensor]] = []
    for start in range(0, len(order), BATCH_SIZE):
        batch = [texts[place] for place in order[start : start + BATCH_SIZE]]
        with torch.inference_mode():
            inputs = batch_to_device(encoder.preprocess([*batch], prompt=prompt), encoder.device)
            features = encoder(inputs)
            exits = embed_exits(encoder, features, depths) if depths else []
        parts.append([*exits, features["sentence_embedding"]])
    full = len(features["all_layer_embeddings"]) - 1
    back = np.argsort(order)
    return {
        depth: torch.cat(rows).float().cpu().numpy()[back]
        for depth, rows in zip([*depths, full], zip(*parts, strict=True), strict=True)
    }
