"""What heads on a frozen backbone need of each text, computed once and kept on disk.

Shapes: T texts, N blocks, D features. For each text and block the cache holds the pooled vector
[D] and one DCT coefficient along the tokens for each feature [D]. Both are linear in the block's
states, so a selector that gets them gives what it gives on the tokens.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from torch import Tensor

from model.network.selector import FrequencySelection, SelectorConfig, pool_tokens
from training.errors import ConfigError

BATCH_SIZE = 32
MAX_BYTES = 4 << 30  # of one cache entry
DESCRIPTION = "states.json"  # written last: a folder without it is not complete


@dataclass(frozen=True)
class BlockStates:
    """The cached states of texts, as arrays mapped from disk.

    ``pooled`` and ``coefficients`` are [T, N, D] float32, block 1 first; ``lengths`` [T] counts
    tokens.
    """

    pooled: NDArray[np.float32]
    coefficients: NDArray[np.float32]
    lengths: NDArray[np.int64]

    def batch(self, rows: Any, blocks: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Tensors pooled [B, n, D], coefficients [B, n, D], lengths [B] of texts and blocks.

        ``blocks`` are numbers from 1; ``rows`` is any numpy index.
        """
        places = slice(blocks[0] - 1, blocks[-1])
        return (
            torch.from_numpy(np.array(self.pooled[rows, places])),
            torch.from_numpy(np.array(self.coefficients[rows, places])),
            torch.from_numpy(np.array(self.lengths[rows])),
        )


def require_cacheable(config: SelectorConfig) -> None:
    """Raise `ConfigError` for a selector whose output is not a function of the cached states."""
    if config.spatial_selection != "avg" and config.num_frequencies == 0:
        raise ConfigError(
            "num_frequencies = 0 gates each token, which pooled states do not hold: set 1 or more."
        )
    if config.mask == "none":
        raise ConfigError(
            "mask = none depends on the padding of a batch, which no cache holds: set valid."
        )


def cached_states(
    encoder: SentenceTransformer,
    backbone: str,
    texts: Sequence[str],
    config: SelectorConfig,
    cache: Path,
    *,
    max_bytes: int = MAX_BYTES,
) -> BlockStates:
    """The states of ``texts`` in every block of the encoder's backbone, from the cache if there.

    The key is the hash of the backbone's weights, the texts, the maximum length, the pooling and
    the squeeze's token frequencies. ``backbone`` names the encoder in the cache's description.
    Raises `ConfigError` for a selector that cannot be cached and for more than ``max_bytes``.
    """
    require_cacheable(config)
    squeeze = FrequencySelection(config)
    depth = int(encoder[0].auto_model.config.num_hidden_layers)
    needed = 2 * 4 * len(texts) * depth * config.width
    if needed > max_bytes:
        raise ConfigError(
            f"The states of {len(texts)} texts take {needed:,} bytes, more than {max_bytes:,}: "
            "use fewer texts."
        )
    description = _description(encoder, backbone, texts, squeeze)
    key = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / key
    if not (folder / DESCRIPTION).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _compute(encoder, texts, squeeze, folder, (len(texts), depth, config.width))
        (folder / DESCRIPTION).write_text(json.dumps(description, indent=1), encoding="utf-8")
    return BlockStates(*(np.load(_file(folder, name), mmap_mode="r") for name in _ARRAYS))


_ARRAYS = ("pooled", "coefficients", "lengths")


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name}.npy"


def _description(
    encoder: SentenceTransformer, backbone: str, texts: Sequence[str], squeeze: FrequencySelection
) -> dict[str, Any]:
    weights = hashlib.sha256()
    for name, value in encoder[0].state_dict().items():
        weights.update(name.encode() + value.detach().cpu().numpy().tobytes())
    held = hashlib.sha256("\0".join(texts).encode())
    token_frequencies = squeeze.token_frequencies.tolist()
    return {
        "backbone": backbone,
        "weights_sha256": weights.hexdigest(),
        "texts": len(texts),
        "texts_sha256": held.hexdigest(),
        "max_seq_length": encoder.max_seq_length,
        "pooling": squeeze.config.pooling,
        "dct_grid": squeeze.config.dct_grid,
        "frequency_policy": squeeze.config.frequency_policy,
        "token_frequencies": token_frequencies,
    }


def _compute(
    encoder: SentenceTransformer,
    texts: Sequence[str],
    squeeze: FrequencySelection,
    folder: Path,
    shape: tuple[int, int, int],
) -> None:
    """Write the arrays; texts of similar length share a batch."""
    create = np.lib.format.open_memmap
    pooled = create(_file(folder, "pooled"), mode="w+", dtype=np.float32, shape=shape)
    coefficients = create(_file(folder, "coefficients"), mode="w+", dtype=np.float32, shape=shape)
    lengths = np.zeros(shape[0], np.int64)
    for rows in _batches(texts):
        means, spectra, count = block_states(encoder, [texts[row] for row in rows], squeeze)
        pooled[rows], coefficients[rows], lengths[rows] = means, spectra, count
    pooled.flush()
    coefficients.flush()
    np.save(_file(folder, "lengths"), lengths)


def _batches(texts: Sequence[str]) -> Iterator[list[int]]:
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    for start in range(0, len(order), BATCH_SIZE):
        yield order[start : start + BATCH_SIZE]


@torch.no_grad()
def block_states(
    encoder: SentenceTransformer, texts: Sequence[str], squeeze: FrequencySelection
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
    """Pooled states [B, N, D], token coefficients [B, N, D] and lengths [B] of a batch of texts."""
    encoder.eval()
    features = encoder[0](encoder.preprocess(list(texts)))
    mask = features["attention_mask"].float()
    basis = squeeze.token_basis(mask)  # [B, F, L]
    own_row = squeeze.rows[:, None] == squeeze.token_frequencies  # [F, D]
    blocks = features["all_layer_embeddings"][1:]
    means = [pool_tokens(block, mask, squeeze.config.pooling) for block in blocks]
    spectra = [((basis @ block) * own_row).sum(1) for block in blocks]
    return (
        torch.stack(means, 1).numpy(),
        torch.stack(spectra, 1).numpy(),
        mask.sum(1).long().numpy(),
    )
