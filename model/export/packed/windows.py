"""Attention of packed tokens to their neighbours: windows of blocks, without rows or padding.

    packed tokens [T, W] -> blocks of n tokens of one text [C, n, W], each seeing itself and both
        beside it -> attention [C, n, 3 n] -> packed tokens [T, W]

Time and memory grow with T, not with the square of a text's length. A text's blocks start at its
first token, so what they compute does not depend on the texts before it.

Shapes: B texts, L tokens with padding, T tokens in all, C blocks of n tokens, W = heads * head.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from s2sent.model.export.packed.attention import MASKED, PackedRows, attend


@dataclass(frozen=True)
class Windows:
    """The packed tokens of each block, and what they see.

    blocks: [C, n], packed tokens; behind a text's last one it is repeated.
    seen: [C, 3 n], the packed tokens of the block before, the same and the next one.
    bias: [C, 1, n, 3 n], 0 where a token is seen: of the same text, within the reach.
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
        size = longest.clamp(max=reach)  # no text is longer, so no token sees further
        lengths = rows.mask.sum(1)[:, None]
        starts = torch.arange(0, longest, size)[None]  # of the blocks of each text
        used = (starts < lengths).reshape(-1).nonzero().reshape(-1)
        ends = lengths.cumsum(0)
        first, end, start = (
            each.expand(-1, starts.shape[1]).reshape(-1)[used][:, None]
            for each in (ends - lengths, ends, ends - lengths + starts)
        )
        blocks = start + torch.arange(size)
        seen = start + torch.arange(-size, 2 * size)
        same = (seen >= first) & (seen < end)
        near = (seen[:, None] - blocks[:, :, None]).abs() <= reach
        bias = torch.where(same[:, None] & near, 0.0, MASKED)
        tokens = (blocks < end).reshape(-1).nonzero().reshape(-1)
        blocks, seen = torch.minimum(blocks, end - 1), torch.clamp(seen, first, end - 1)
        return cls(blocks, seen, bias[:, None], tokens)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, heads: int, scale: float, fused: bool
    ) -> Tensor:
        """Attention of packed tokens, [T, W] as all its arguments."""
        padded = attend(
            query[self.blocks],
            key[self.seen],
            value[self.seen],
            heads=heads,
            scale=scale,
            bias=self.bias,
            fused=fused,
        )
        return padded.reshape(-1, padded.shape[-1])[self.tokens]
