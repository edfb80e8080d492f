"""What heads on a frozen backbone need of each text, computed once for all of them.

Shapes: T texts, N blocks, D features. Of each text and block that is the pooled vector [D] and one
DCT coefficient along the tokens for each feature [D]. Both are linear in the block's states, so a
selector that gets them gives what it gives on the tokens, whose states would take some thirty times
the memory. Where the gate sees only the token that is read, that token's state is both. Of a
template with two stages Rep2 can stand beside Rep1.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from torch import Tensor

from s2sent.model.network.selector_config import SelectorConfig
from s2sent.model.network.selector_squeeze import FrequencySelection
from s2sent.model.network.selector_states import pool_tokens, scope_mask
from s2sent.model.network.transformer import VIEWS
from s2sent.training.evaluation.sts import Encode
from s2sent.training.experiments.frozen.heads import Head

log = logging.getLogger(__name__)

BATCH_SIZE = 32
CHUNK = 4096  # texts that a head embeds at once
REPORT_EVERY = 100  # batches


@dataclass(frozen=True)
class BlockStates:
    """The states of texts in the last N blocks of a backbone.

    ``arrays`` are "pooled", "coefficients" unless these are the same, and "second" where Rep2 is
    read, all [T, N, D] float32; ``lengths`` [T] counts the tokens that the squeeze sees; ``row``
    has the place of each text.
    """

    arrays: Mapping[str, Tensor]
    lengths: Tensor
    row: Mapping[str, int]

    def batch(
        self, rows: Tensor | slice, blocks: int, *, second: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Pooled [B, n, D], coefficients [B, n, D], lengths [B] of texts and their last n blocks.

        With ``second`` those of Rep2.
        """
        pooled = self.arrays["second" if second else "pooled"][rows, -blocks:]
        apart = None if second else self.arrays.get("coefficients")
        return pooled, pooled if apart is None else apart[rows, -blocks:], self.lengths[rows]

    @torch.no_grad()
    def encode_by(self, head: Head, blocks: int) -> Encode:
        """What gives the embeddings [n, D] of n of the texts by a head on the last blocks."""
        starts = range(0, len(self.row), CHUNK)
        parts = [head(*self.batch(slice(at, at + CHUNK), blocks)) for at in starts]
        embeddings = torch.cat(parts).numpy()
        return lambda texts: embeddings[[self.row[text] for text in texts]]


@torch.no_grad()
def states_of(
    encoder: SentenceTransformer,
    texts: Sequence[str],
    config: SelectorConfig,
    num_blocks: int,
    *,
    with_second: bool = False,
) -> BlockStates:
    """The states of different texts, as a selector of ``config`` sees them.

    ``with_second`` reads the whole template and keeps Rep2 beside Rep1. Texts of similar length
    share a batch.
    """
    encoder.eval()
    squeeze = FrequencySelection(config)
    arrays: dict[str, Tensor] = {}
    lengths = torch.zeros(len(texts), dtype=torch.long)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    whole = {"task": VIEWS[0]} if with_second else {}  # the template with both stages
    for number, start in enumerate(range(0, len(order), BATCH_SIZE)):
        rows = order[start : start + BATCH_SIZE]
        inputs = encoder.preprocess([texts[row] for row in rows], **whole)
        features = encoder[0](batch_to_device(inputs, encoder.device))
        found, lengths[rows] = _of_batch(features, squeeze, num_blocks, with_second=with_second)
        for name, value in found.items():
            shape = (len(texts), *value.shape[1:])
            arrays.setdefault(name, torch.empty(shape))[rows] = value
        if number % REPORT_EVERY == REPORT_EVERY - 1:
            log.info("states of %d of %d texts", start + len(rows), len(texts))
    return BlockStates(arrays, lengths, {text: row for row, text in enumerate(texts)})


def _of_batch(
    features: Mapping[str, Tensor], squeeze: FrequencySelection, blocks: int, *, with_second: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """The arrays [B, N, D] of a batch of texts, and how many tokens [B] the squeeze sees."""
    config, cpu = squeeze.config, torch.device("cpu")
    states = [block.float().to(cpu) for block in features["all_layer_embeddings"][-blocks:]]
    mask = features["attention_mask"].float().to(cpu)
    read = features["read_positions"].to(cpu) if "read_positions" in features else None
    scope = scope_mask(mask, config.squeeze_scope, read)
    pooled = [pool_tokens(each, mask, config.pooling, read) for each in states]
    found = {"pooled": torch.stack(pooled, 1)}
    if with_second:
        last = mask.sum(1).long() - 1
        second = [pool_tokens(each, mask, "token", last) for each in states]
        found["second"] = torch.stack(second, 1)
    if config.squeeze_scope != "token":
        basis = squeeze.token_basis(scope)  # [B, F, L]
        own_row = squeeze.rows[:, None] == squeeze.token_frequencies  # [F, D]
        coefficients = [((basis @ each) * own_row).sum(1) for each in states]
        found["coefficients"] = torch.stack(coefficients, 1)
    return found, scope.sum(1).long()
