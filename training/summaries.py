"""What a gate needs to know of a sentence, when the backbone is frozen.

The squeeze is linear in the blocks and the fused blocks are pooled linearly, so with fixed block
outputs an embedding depends on a sentence only through its squeezed vector f and its N pooled
blocks: (1 + N) D numbers. They are computed once, by the selector's own code; afterwards a
training step costs a matrix product or two instead of a pass through the backbone.
"""

import hashlib
import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor

from model.encoder import get_selector
from model.selector import S2SentSelector
from training.errors import ConfigError

log = logging.getLogger(__name__)

BATCH_SIZE = 64
LOG_SECONDS = 10


@dataclass(frozen=True)
class Summaries:
    """For n sentences, ``squeezed`` [n, D] and ``pooled`` [n, N, D], oldest block first."""

    squeezed: Tensor
    pooled: Tensor

    def __len__(self) -> int:
        return len(self.squeezed)

    def __getitem__(self, rows: Tensor) -> "Summaries":
        return Summaries(self.squeezed[rows], self.pooled[rows])


def embed(selector: S2SentSelector, summaries: Summaries) -> Tensor:
    """Embeddings [n, D], not normalised: the pooled blocks, weighed by the selector's gate."""
    assert selector.spatial_selection is not None  # `summarise` refused it  # noqa: S101
    num_blocks = summaries.pooled.shape[1]
    weights = selector.spatial_selection(summaries.squeezed, num_blocks)  # [N, n, D]
    return torch.einsum("kbd,bkd->bd", weights, summaries.pooled)


@torch.no_grad()
def summarise(encoder: SentenceTransformer, texts: Sequence[str]) -> Summaries:
    """Run the backbone once over ``texts``, in batches of close lengths; row i is for text i.

    Raises `ConfigError` for a selector whose gate sees more of a sentence than its summary.
    """
    _require_summaries(get_selector(encoder))
    order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
    parts, started, logged = [], time.monotonic(), time.monotonic()
    for start in range(0, len(order), BATCH_SIZE):
        parts.append(
            _summarise_batch(encoder, [texts[i] for i in order[start : start + BATCH_SIZE]])
        )
        if time.monotonic() - logged > LOG_SECONDS:
            logged, done = time.monotonic(), start + BATCH_SIZE
            rate = done / (logged - started)
            log.info("read %d of %d texts, %.0f texts/s", done, len(texts), rate)
    back = torch.tensor(order).argsort()
    squeezed, pooled = (torch.cat(part)[back] for part in zip(*parts, strict=True))
    return Summaries(squeezed, pooled)


def cached_summaries(
    encoder: SentenceTransformer, texts: Sequence[str], cache: Path | None
) -> Summaries:
    """`summarise`, or what an earlier call with the same texts and encoder left in ``cache``."""
    if cache is None:
        return summarise(encoder, texts)
    path = cache / f"{_fingerprint(encoder, texts)}.safetensors"
    if not path.exists():
        summaries = summarise(encoder, texts)
        cache.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        save_file({"squeezed": summaries.squeezed, "pooled": summaries.pooled}, partial)
        partial.rename(path)  # an interrupted run leaves no file that looks whole
    return Summaries(**load_file(path))


def _summarise_batch(encoder: SentenceTransformer, texts: list[str]) -> tuple[Tensor, Tensor]:
    """``squeezed`` [B, D] and ``pooled`` [B, N, D] on the CPU."""
    selector = get_selector(encoder)
    assert selector.frequency_selection is not None  # `summarise` refused it  # noqa: S101
    inputs: list[Any] = list(texts)  # the library's type allows more than texts, and is invariant
    features = encoder[0](batch_to_device(encoder.preprocess(inputs), encoder.device))
    blocks = selector.select_blocks(features["all_layer_embeddings"])
    mask = features["attention_mask"]
    weight = mask.to(blocks[0].dtype)
    basis = selector.frequency_selection.token_basis(weight)  # [B, F, L]
    squeezed = selector.frequency_selection([basis @ block for block in blocks], weight)
    pooled = [
        encoder[2]({"token_embeddings": block, "attention_mask": mask})["sentence_embedding"]
        for block in blocks
    ]
    return squeezed.cpu(), torch.stack(pooled, dim=1).cpu()


def _require_summaries(selector: S2SentSelector) -> None:
    if selector.spatial_selection is None:
        raise ConfigError(
            "[selector] spatial_selection = 'avg' has no gate to fit: choose '2d' or '1d'."
        )
    if selector.frequency_selection is None:
        raise ConfigError(
            "[selector] num_frequencies = 0 weighs tokens one by one, which cannot be fitted on a "
            "frozen backbone's sentence summaries: choose 1 or more."
        )


def _fingerprint(encoder: SentenceTransformer, texts: Sequence[str]) -> str:
    """A hash of all that `summarise` depends on: the texts, the backbone and the squeeze."""
    digest = hashlib.sha256("\n".join(texts).encode())
    settings = [asdict(get_selector(encoder).config), encoder.max_seq_length]
    digest.update(json.dumps(settings, sort_keys=True).encode())
    for name, value in sorted(encoder[0].state_dict().items()):
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
