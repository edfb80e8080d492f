"""What heads on a frozen backbone need of each text, computed once and kept on disk.

Shapes: T texts, N blocks, D features. For each text and block the cache holds the pooled vector
[D] and one DCT coefficient along the tokens for each feature [D]. Both are linear in the block's
states, so a selector that gets them gives what it gives on the tokens. Where the gate sees only the
token that is read, that token's state is both. Of a template with two stages the cache can hold
Rep2 beside Rep1.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor

from s2sent.model.network.encoder import find_template
from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.selector_squeeze import FrequencySelection
from s2sent.model.network.selector_states import pool_tokens, scope_mask
from s2sent.model.network.transformer import VIEWS
from s2sent.training.errors import ConfigError
from s2sent.training.files.locks import locked
from s2sent.training.files.record import written_whole
from s2sent.training.loop.lookup import MAX_BYTES, depth_of

log = logging.getLogger(__name__)

BATCH_SIZE = 32
REPORT_EVERY = 100  # batches


@dataclass(frozen=True)
class BlockStates:
    """The cached states of texts.

    ``pooled`` and ``coefficients`` are [T, N, D] float32, the block ``first`` first; ``lengths``
    [T] counts the tokens that the squeeze sees. ``second`` [T, N, D] holds the states of Rep2.
    """

    pooled: NDArray[np.float32]
    coefficients: NDArray[np.float32]
    lengths: NDArray[np.int64]
    first: int = 1
    second: NDArray[np.float32] | None = None

    def batch(
        self, rows: Any, blocks: Sequence[int], *, second: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tensors pooled [B, n, D], coefficients [B, n, D], lengths [B] of texts and blocks.

        ``blocks`` are numbers from 1; ``rows`` is any numpy index. With ``second`` of Rep2.
        """
        places = slice(blocks[0] - self.first, blocks[-1] - self.first + 1)
        states = self.second if second else self.pooled
        assert states is not None  # noqa: S101 - who asks for Rep2 has cached it
        pooled = torch.from_numpy(np.array(states[rows, places]))
        if second or self.coefficients is self.pooled:
            coefficients = pooled
        else:
            coefficients = torch.from_numpy(np.array(self.coefficients[rows, places]))
        return pooled, coefficients, torch.from_numpy(np.array(self.lengths[rows]))


def cached_states(
    encoder: SentenceTransformer,
    texts: Sequence[str],
    config: SelectorConfig,
    cache: Path,
    *,
    num_blocks: int | None = None,
    with_second: bool = False,
    max_bytes: int = MAX_BYTES,
) -> BlockStates:
    """The states of ``texts`` in the encoder's last blocks, from the cache if there.

    Of processes that share the cache one computes them, and the others wait. ``num_blocks`` is how
    many of them, None for all. ``with_second`` reads the whole template and keeps Rep2 beside Rep1.
    The key is the hash of the backbone's weights, the texts, the maximum length, the template and
    the selector. Raises `ConfigError` for more than ``max_bytes``.
    """
    plan = _Plan(FrequencySelection(config), num_blocks or depth_of(encoder), with_second)
    needed = len(plan.arrays) * 4 * len(texts) * plan.num_blocks * config.width
    if needed > max_bytes:
        raise ConfigError(
            f"The states of {len(texts)} texts take {needed:,} bytes, more than {max_bytes:,}: "
            "use fewer texts."
        )
    description = _description(encoder, texts, plan)
    key = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]
    file = cache / f"{key}.npz"
    with locked(file, wait=True):
        if not file.is_file():
            arrays = _compute(encoder, texts, plan)
            with written_whole(file) as scratch:
                np.savez(scratch, **arrays)
    found: dict[str, Any] = dict(np.load(file))
    return BlockStates(
        found["pooled"],
        found.get("coefficients", found["pooled"]),
        found["lengths"],
        depth_of(encoder) - plan.num_blocks + 1,
        found.get("second"),
    )


@dataclass(frozen=True)
class _Plan:
    """What is computed of each text."""

    squeeze: FrequencySelection
    num_blocks: int
    with_second: bool

    @property
    def config(self) -> SelectorConfig:
        return self.squeeze.config

    @property
    def one_token(self) -> bool:
        """Whether all that the selector sees of a text is the token that is read."""
        return self.config.squeeze_scope == "token"

    @property
    def arrays(self) -> list[str]:
        """The arrays [T, N, D] of the cache."""
        coefficients = [] if self.one_token else ["coefficients"]
        return ["pooled", *coefficients, *(["second"] if self.with_second else [])]


def _description(encoder: SentenceTransformer, texts: Sequence[str], plan: _Plan) -> dict[str, Any]:
    weights = hashlib.sha256()
    for name, value in encoder[0].state_dict().items():
        held = value.detach().cpu().contiguous()
        bits = held.view(torch.uint8) if held.dim() else held
        weights.update(name.encode() + bits.numpy().tobytes())
    template = find_template(encoder)
    return {
        "weights_sha256": weights.hexdigest(),
        "texts": len(texts),
        "texts_sha256": hashlib.sha256("\0".join(texts).encode()).hexdigest(),
        "max_seq_length": encoder.max_seq_length,
        "selector": asdict(plan.config),
        "num_blocks": plan.num_blocks,
        "template": None if template is None else repr(template),
        "with_second": encoder[0].templates if plan.with_second else False,
    }


def _compute(encoder: SentenceTransformer, texts: Sequence[str], plan: _Plan) -> dict[str, Any]:
    """The arrays of the cache by name; texts of similar length share a batch."""
    shape = (len(texts), plan.num_blocks, plan.config.width)
    arrays = {name: np.empty(shape, np.float32) for name in plan.arrays}
    lengths = np.zeros(len(texts), np.int64)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    for number, start in enumerate(range(0, len(order), BATCH_SIZE)):
        rows = order[start : start + BATCH_SIZE]
        found, lengths[rows] = block_states(encoder, [texts[row] for row in rows], plan)
        for name, array in arrays.items():
            array[rows] = found[name]
        if number % REPORT_EVERY == REPORT_EVERY - 1:
            log.info("states of %d of %d texts", start + len(rows), len(texts))
    return {**arrays, "lengths": lengths}


@torch.no_grad()
def block_states(
    encoder: SentenceTransformer, texts: Sequence[str], plan: _Plan
) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.int64]]:
    """The arrays [B, N, D] of a batch of texts, and how many tokens [B] the squeeze sees."""
    encoder.eval()
    whole = {"task": VIEWS[0]} if plan.with_second else {}  # the template with both stages
    inputs = batch_to_device(encoder.preprocess(list(texts), **whole), encoder.device)
    features = batch_to_device(encoder[0](inputs), torch.device("cpu"))
    every = features["all_layer_embeddings"][-plan.num_blocks :]
    blocks = [block.float().cpu() for block in every]  # the tuple of blocks stays where it is
    mask, read = features["attention_mask"].float(), features.get("read_positions")
    config = plan.config
    scope = scope_mask(mask, config.squeeze_scope, read)

    def stacked(vectors: Iterable[Tensor]) -> NDArray[np.float32]:
        return torch.stack([*vectors], 1).numpy()

    found: dict[str, NDArray[np.float32]] = {
        "pooled": stacked(pool_tokens(block, mask, config.pooling, read) for block in blocks)
    }
    if plan.with_second:
        last = mask.sum(1).long() - 1
        found["second"] = stacked(pool_tokens(block, mask, "token", last) for block in blocks)
    if not plan.one_token:
        basis = plan.squeeze.token_basis(scope)  # [B, F, L]
        own_row = plan.squeeze.rows[:, None] == plan.squeeze.token_frequencies  # [F, D]
        found["coefficients"] = stacked(((basis @ block) * own_row).sum(1) for block in blocks)
    return found, scope.sum(1).long().numpy()
