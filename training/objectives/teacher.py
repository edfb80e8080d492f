"""Computes the teachers' embeddings of the corpus, and keeps them in a cache folder."""

import hashlib
import logging
import zipfile
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
    that precision where a teacher runs in torch. ``cache`` keeps the embedding of each text
    in a folder of the teacher, named by a hash of its embeddings of probes. Raises
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
    """Embeddings [N, E] of texts, each computed once; ``cache`` keeps them between runs."""
    unique = list(dict.fromkeys(texts))
    keys = [hashlib.sha256(text.encode()).hexdigest() for text in unique]
    found: dict[str, NDArray[np.float32]] = {}
    folder = None
    if cache is not None:
        folder = cache / f"teacher-{hashlib.sha256(encode(PROBES).tobytes()).hexdigest()[:16]}"
        found = _read_kept(folder, {*keys})
    missing = [at for at, key in enumerate(keys) if key not in found]
    for start in range(0, len(missing), TEXTS_PER_CALL):
        chunk = missing[start : start + TEXTS_PER_CALL]
        vectors = encode([unique[at] for at in chunk]).astype(np.float32)
        new = [keys[at] for at in chunk]
        found.update(zip(new, vectors, strict=True))
        if folder is not None:
            name = hashlib.sha256("".join(new).encode()).hexdigest()[:16]
            with written_whole(folder / f"{name}.npz") as scratch:
                np.savez(scratch, keys=new, vectors=vectors)
        log.info("the teacher has embedded %d of %d texts", start + len(chunk), len(missing))
    places = dict(zip(unique, keys, strict=True))
    return np.stack([found[places[text]] for text in texts])


def _read_kept(folder: Path, wanted: set[str]) -> dict[str, NDArray[np.float32]]:
    """The embeddings of texts, by the sha256 of each text, in the files of a teacher's folder."""
    kept: dict[str, NDArray[np.float32]] = {}
    for path in sorted(folder.glob("*.npz")):
        if path.stem.endswith(".partial"):  # of a process that was killed
            continue
        try:
            with path.open("rb") as opened, np.load(opened) as file:
                rows = zip(file["keys"].tolist(), file["vectors"], strict=True)
                kept.update((key, vector) for key, vector in rows if key in wanted)
        except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise DataError(
                f"{path} is not a whole file of embeddings ({error}): delete it, and they are"
                " computed again."
            ) from None
    return kept
