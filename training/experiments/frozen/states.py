"""What heads on a frozen backbone need of each text, computed once for all of them.

Shapes: T texts, N blocks, D features. Of each text and block that is the pooled vector [D] and one
DCT coefficient along the tokens for each feature [D]. Both are linear in the block's states, so a
selector that gets them gives what it gives on the tokens, whose states would take some thirty times
the memory. Where the gate sees only the token that is read, that token's state is both.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor

from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.selector_squeeze import FrequencySelection
from s2sent.model.network.selector_states import pool_tokens, scope_mask
from s2sent.training.evaluation.sts import Encode
from s2sent.training.experiments.frozen.heads import Head

log = logging.getLogger(__name__)

BATCH_SIZE = 32
CHUNK = 4096  # texts that a head embeds at once
REPORT_EVERY = 100  # batches


@dataclass(frozen=True)
class BlockStates:
    """The states of texts in the last N blocks of a backbone.

    ``pooled`` and ``coefficients`` are [T, N, D] float32, ``lengths`` [T] counts the tokens that
    the squeeze sees, ``row`` has the place of each text.
    """

    pooled: Tensor
    coefficients: Tensor
    lengths: Tensor
    row: Mapping[str, int]

    def batch(self, rows: Tensor | slice, blocks: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pooled and coefficients [B, n, D] of texts and their last n blocks, and lengths [B]."""
        pooled, coefficients = (of[rows, -blocks:] for of in (self.pooled, self.coefficients))
        return pooled, coefficients, self.lengths[rows]

    @torch.no_grad()
    def encode_by(self, head: Head, blocks: int) -> Encode:
        """What gives the embeddings [n, D] of n of the texts by a head on the last blocks."""
        starts = range(0, len(self.row), CHUNK)
        parts = [head(*self.batch(slice(at, at + CHUNK), blocks)) for at in starts]
        embeddings = torch.cat(parts).numpy()
        return lambda texts: embeddings[[self.row[text] for text in texts]]


@torch.no_grad()
def states_of(
    encoder: SentenceTransformer, texts: Sequence[str], config: SelectorConfig, num_blocks: int
) -> BlockStates:
    """The states of different texts, as a selector of ``config`` sees them.

    Texts of similar length share a batch.
    """
    encoder.eval()
    squeeze = FrequencySelection(config)
    pooled = torch.empty(len(texts), num_blocks, config.width)
    coefficients = pooled if config.squeeze_scope == "token" else torch.empty_like(pooled)
    lengths = torch.zeros(len(texts), dtype=torch.long)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    for number, start in enumerate(range(0, len(order), BATCH_SIZE)):
        rows = order[start : start + BATCH_SIZE]
        inputs = encoder.preprocess([texts[row] for row in rows])
        features = encoder[0](batch_to_device(inputs, encoder.device))
        pooled[rows], apart, lengths[rows] = _of_batch(features, squeeze, num_blocks)
        if coefficients is not pooled:
            coefficients[rows] = apart
        if number % REPORT_EVERY == REPORT_EVERY - 1:
            log.info("states of %d of %d texts", start + len(rows), len(texts))
    return BlockStates(pooled, coefficients, lengths, {text: row for row, text in enumerate(texts)})


def _of_batch(
    features: Mapping[str, Any], squeeze: FrequencySelection, blocks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pooled and coefficients [B, N, D] of texts, and how many tokens [B] the squeeze sees."""
    config, cpu = squeeze.config, torch.device("cpu")
    features = batch_to_device(dict(features), cpu)
    states = [block.float().to(cpu) for block in features["all_layer_embeddings"][-blocks:]]
    mask, read = features["attention_mask"].float(), features.get("read_positions")
    scope = scope_mask(mask, config.squeeze_scope, read)
    basis = squeeze.token_basis(scope)  # [B, F, L]
    own_row = squeeze.rows[:, None] == squeeze.token_frequencies  # [F, D]
    pooled = [pool_tokens(each, mask, config.pooling, read) for each in states]
    coefficients = [((basis @ each) * own_row).sum(1) for each in states]
    return torch.stack(pooled, 1), torch.stack(coefficients, 1), scope.sum(1).long()
