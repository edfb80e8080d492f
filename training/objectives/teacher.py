"""Computes the teachers' embeddings of the corpus, and keeps them in a cache folder."""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from s2sent.training.corpus import Corpus
from s2sent.training.errors import DataError
from s2sent.training.evaluation.encoders import open_encoder
from s2sent.training.evaluation.sts import Encode
from s2sent.training.files.record import written_whole

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
    that precision where a teacher runs in torch. ``cache`` is a folder for computed embeddings,
    named by a hash of the texts and of the teacher's embeddings of probes. Raises
    `EncoderError` for a name that is not an encoder.
    """
    rows = [row for part in corpus.parts.values() for row in part]
    texts = [text for row in rows for text in row]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.autocast(device, torch.bfloat16, bf16):
        found = [_embeddings(open_encoder(name), texts, cache) for name in names]
    units = torch.cat([functional.normalize(torch.from_numpy(part)) for part in found], dim=1)
    return units.view(len(rows), -1, units.shape[1])


def _embeddings(encode: Encode, texts: list[str], cache: Path | None) -> NDArray[np.float32]:
    if cache is None:
        return _encode_all(encode, texts)
    digest = hashlib.sha256("\n".join(texts).encode() + encode(PROBES).tobytes())
    path = cache / f"{digest.hexdigest()[:16]}.npy"
    if not path.is_file():
        with written_whole(path) as scratch:
            np.save(scratch, _encode_all(encode, texts))
    try:
        kept: NDArray[np.float32] = np.load(path)
    except (ValueError, EOFError) as error:
        raise DataError(
            f"{path} is not a whole file of embeddings ({error}): delete it, and they are computed"
            " again."
        ) from None
    return kept


def _encode_all(encode: Encode, texts: list[str]) -> NDArray[np.float32]:
    parts = []
    for start in range(0, len(texts), TEXTS_PER_CALL):
        parts.append(encode(texts[start : start + TEXTS_PER_CALL]))
        log.info("the teacher has embedded %d of %d texts", start + len(parts[-1]), len(texts))
    return np.concatenate(parts).astype(np.float32)
