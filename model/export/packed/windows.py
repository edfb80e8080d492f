"""Attention of packed tokens to their neighbours: windows of blocks, without rows or padding.

    packed tokens [T, W] -> blocks of n tokens of one text [C, n, W], each seeing itself and, where
        a text has several, the tokens within reach of it on both sides -> attention [C, n, S]
        -> packed tokens [T, W]

Time and memory grow with T, not with the square of a text's length. A text's blocks start at its
first token and see themselves first: sums have the same order whatever other texts a batch has.

Shapes: B texts, L tokens with padding, T tokens in all, C blocks of n tokens, S tokens seen,
W = heads * head.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from s2sent.model.export.packed.attention import MASKED, PackedRows, attend, gather_parts


@dataclass(frozen=True)
class Windows:
    """The packed tokens of each block, and what they see.

    blocks: [C, n], packed tokens; behind a text's last one it is repeated.
    seen: [C, S], the packed tokens of the same block, and with several those behind and before it.
    bias: [C, 1, n, S], 0 where a token is seen: of the same text, within the reach.
    tokens: [T], the place of each token in the blocks, flattened.
    """

    blocks: Tensor
    seen: Tensor
    bias: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, rows: PackedRows, reach: int) -> "Windows":
        """In which a token sees those of its text at most ``reach`` places before or behind it."""
        longest: Any = torch.ones_like(rows.mask[0]).sum()
        size = longest.clamp(max=2 * reach)  # no text is longer
        lengths = rows.mask.sum(1)
        counts = (lengths + size - 1) // size  # of the blocks of each text
        block_ends, ends = counts.cumsum(0), lengths.cumsum(0)
        first_blocks, place = block_ends - counts, torch.arange(counts.sum())
        text = (place[:, None] >= block_ends).sum(1)  # of each block
        end = ends[text][:, None]
        first = end - lengths[text][:, None]
        start = first + (place - first_blocks[text])[:, None] * size
        own = torch.arange(size)
        beside = torch.arange(reach * (longest > size))  # nothing where each text is one block
        blocks = start + own
        seen = start + torch.cat([own, beside + size, beside - reach])
        same = (seen >= first) & (seen < end)
        near = (seen[:, None] - blocks[:, :, None]).abs() <= reach
        bias = torch.where(same[:, None] & near, 0.0, MASKED)
        tokens = first_blocks[rows.tokens // longest] * size + rows.tokens % longest
        blocks, seen = torch.minimum(blocks, end - 1), torch.clamp(seen, first, end - 1)
        return cls(blocks, seen, bias[:, None], tokens)

    def attend(self, joint: Tensor, *, heads: int, scale: float, fused: bool) -> Tensor:
        """Attention [1, T, W] of query, key and value side by side, ``joint`` [1, T, 3 W]."""
        parts = gather_parts(joint, self.blocks, self.seen)
        padded = attend(*parts, heads=heads, scale=scale, bias=self.bias, fused=fused)
        return padded.reshape(-1, padded.shape[-1])[self.tokens][None]
