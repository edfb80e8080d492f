"""Computes the teachers' embeddings of the corpus, and keeps them in a cache folder."""

import hashlib
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from s2sent.training.corpus import Corpus
from s2sent.training.evaluation.encoders import open_encoder
from s2sent.training.evaluation.sts import Encode
from s2sent.training.files.arrays import kept_arrays

log = logging.getLogger(__name__)

# The last one shows where a teacher cuts texts, and what it does to one without an end.
PROBES = [
    "A man plays the guitar.",
    "Two dogs run along the river in the snow.",
    " ".join(map(str, range(512))),
]
TEXTS_PER_CALL = 2048


def teachers_embeddings(
    names: Sequence[str], corpus: Corpus, cache: Path | None, *, bf16: bool = False
) -> Tensor:
    """Embeddings [M, C, E] of the C texts of each corpus row, whose cosines are the teachers' mean.

    They are the teachers' unit-norm embeddings, concatenated. ``bf16`` computes matrix products in
    that precision where a teacher runs in torch. ``cache`` keeps the embedding of each text
    in a file of the teacher, named by a hash of its embeddings of probes. Raises `EncoderError` for
    a name that is not an encoder, and `DataError` for such a file that cannot be used.
    """
    rows = [row for part in corpus.parts.values() for row in part]
    texts = [text for row in rows for text in row]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.autocast(device, torch.bfloat16, bf16):
        found = [_embeddings(open_encoder(name), texts, cache) for name in names]
    units = torch.cat([functional.normalize(torch.from_numpy(part)) for part in found], dim=1)
    return units.view(len(rows), -1, units.shape[1])


def _embeddings(encode: Encode, texts: list[str], cache: Path | None) -> NDArray[np.float32]:
    """Embeddings [N, E] of texts, each computed once; ``cache`` keeps them between runs."""
    unique = {text: text.encode() for text in texts}
    found: dict[bytes, NDArray[np.float32]] = {}
    with nullcontext() if cache is None else kept_arrays(cache / _file_of(encode)) as kept:
        if kept is not None:
            found = kept.get(unique.values())
        missing = [text for text, key in unique.items() if key not in found]
        for start in range(0, len(missing), TEXTS_PER_CALL):
            chunk = missing[start : start + TEXTS_PER_CALL]
            vectors = encode(chunk).astype(np.float32)
            new = dict(zip((unique[text] for text in chunk), vectors, strict=True))
            found |= new
            if kept is not None:
                kept.put(new)
            log.info("the teacher has embedded %d of %d texts", start + len(chunk), len(missing))
    return np.stack([found[unique[text]] for text in texts])


def _file_of(encode: Encode) -> str:
    return f"teacher-{hashlib.sha256(encode(PROBES).tobytes()).hexdigest()[:16]}.sqlite"
