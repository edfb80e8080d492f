"""A teacher's embeddings of the corpus, computed once and kept between runs."""

import hashlib
import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.corpus import Corpus
from training.encoders import open_encoder
from training.evaluation import Encode

log = logging.getLogger(__name__)

PROBES = ["A man plays the guitar.", "Two dogs run along the river in the snow."]
TEXTS_A_TURN = 2048


def teacher_embeddings(
    name: str, corpus: Corpus, cache: Path | None, *, bf16: bool = False
) -> Tensor:
    """The embeddings [M, E] that the encoder ``name`` gives the first text of each corpus row.

    ``bf16`` computes matrix products in that precision where the encoder runs in torch. ``cache``
    is a folder that keeps what was computed, under a hash of the texts and of what the teacher
    makes of two probes. Raises `EncoderError` when there is no such encoder.
    """
    encode = open_encoder(name)
    texts = [row[0] for rows in corpus.parts.values() for row in rows]
    with torch.autocast("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16, bf16):
        if cache is None:
            return torch.from_numpy(_encode_all(encode, texts))
        digest = hashlib.sha256("\n".join(texts).encode() + encode(PROBES).tobytes())
        path = cache / f"{digest.hexdigest()[:16]}.npy"
        if not path.is_file():
            cache.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial.npy")
            np.save(partial, _encode_all(encode, texts))
            partial.rename(path)  # an interrupted run leaves no file that looks whole
    return torch.from_numpy(np.load(path))


def _encode_all(encode: Encode, texts: list[str]) -> np.ndarray:
    parts = []
    for start in range(0, len(texts), TEXTS_A_TURN):
        parts.append(encode(texts[start : start + TEXTS_A_TURN]))
        log.info("the teacher read %d of %d texts", start + len(parts[-1]), len(texts))
    return np.concatenate(parts).astype(np.float32)
