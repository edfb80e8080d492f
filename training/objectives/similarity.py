"""Cosines in full precision, and which texts of a batch are no negatives of each other.

Texts that are right answers of a row are left out of its negatives, by the tokens that are read.

Shapes: B rows of this process, W rows of all processes, C columns of candidates, L tokens.
"""

from collections.abc import Sequence

import torch
from sentence_transformers.util import all_gather, cos_sim
from torch import Tensor
from torch.nn import functional

# The constants of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) as signed numbers.
_STEP, _MIX = -7046029254386353131, -4658895280553007687


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """Cosines [A, B] of [A, D] and [B, D] in full precision, also under autocast.

    A tuned encoder's loss is a few thousandths, which is also bfloat16's rounding error.
    """
    with torch.autocast(first.device.type, enabled=False):
        return cos_sim(first.float(), second.float())


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """KL(softmax(target) || softmax(logits)) along the last of two dimensions, the mean of rows."""
    return functional.kl_div(
        logits.float().log_softmax(-1),
        target.float().log_softmax(-1),
        log_target=True,
        reduction="batchmean",
    )


def text_keys(column: dict[str, Tensor]) -> Tensor:
    """A number [B] for each text of a column, equal for equal tokens, whatever the padding."""
    mask = column["attention_mask"].long()
    factor = mask.cumsum(1) * _STEP  # of a token's place; products and sums wrap around
    factor = (factor ^ (factor >> 30)) * _MIX
    return ((column["input_ids"] + 1) * (factor ^ (factor >> 27)) * mask).sum(1)


def right_answers(columns: Sequence[dict[str, Tensor]], *, gather: bool) -> Tensor:
    """Which candidates [B, C W] are no negatives of a row of at least two columns.

    These are texts equal to the row's anchor or positive, and the positives of equal anchors. The
    row's own positive is not among them.
    """
    own = [text_keys(column) for column in columns]
    every = [all_gather(keys) for keys in own] if gather else own
    anchors, positives = own[0][:, None], own[1][:, None]
    candidates = torch.cat(every[1:])
    right = (candidates == anchors) | (candidates == positives)
    right[:, : len(every[0])] |= every[0] == anchors
    rows = torch.arange(len(anchors), device=anchors.device)
    first = torch.distributed.get_rank() * len(rows) if gather else 0
    right[rows, rows + first] = False
    return right


def right_partners(keys: Tensor) -> Tensor:
    """Which rows [2 B, 2 B] are right answers beside a row's partner, by the keys [2 B] of texts.

    These are texts equal to the row's or its partner's, and the partners of equal texts.
    """
    row = torch.arange(len(keys), device=keys.device)
    partners = keys[row ^ 1]
    right = (keys == keys[:, None]) | (keys == partners[:, None]) | (partners == keys[:, None])
    right[row, row ^ 1] = False
    return right


class MaskedCosine:
    """Cosines, minus infinity for the right answers that `read` found in a batch.

    A loss may ask for a part of the rows at a time, in their order, and for all of them repeatedly.
    """

    def __init__(self, *, gather: bool) -> None:
        self._gather = gather
        self._right: Tensor | None = None
        self._next = 0

    def read(self, columns: Sequence[dict[str, Tensor]]) -> None:
        """Take the columns of the next batch; a single one has no right answers but its own."""
        self._right = right_answers(columns, gather=self._gather) if len(columns) > 1 else None
        self._next = 0

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """Cosines [b, C W] of the next b rows with all candidates."""
        found = cosine(first, second)
        if self._right is None:
            return found
        rows = self._right[self._next : self._next + len(first)]
        self._next = (self._next + len(first)) % len(self._right)
        return found.masked_fill(rows, -torch.inf)
