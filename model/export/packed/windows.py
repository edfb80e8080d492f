"""Attention of packed tokens to their neighbours: windows of blocks, without rows or padding.

    packed tokens [T, W] -> blocks of n tokens [C, n, W], each seeing itself and both beside it
        -> attention [C, n, 3 n] -> packed tokens [T, W]

Time and memory grow with T, not with the square of a text's length.

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

    blocks: [C, n], packed tokens; behind the last one it is repeated.
    seen: [C, 3 n], the packed tokens of the block before, the same and the next one.
    bias: [C, 1, n, 3 n], 0 where a token is seen: of the same text, within the reach.
    """

    blocks: Tensor
    seen: Tensor
    bias: Tensor

    @classmethod
    def of(cls, rows: PackedRows, reach: int) -> "Windows":
        """In which a token sees those of its text at most ``reach`` places before or behind it."""
        count = rows.tokens.shape[0]
        longest = torch.ones_like(rows.mask[0]).sum()
        size: Any = longest.clamp(max=reach)  # no text is longer, so no token sees further
        starts = torch.arange(0, count, size)[:, None]
        blocks = starts + torch.arange(size)
        seen = starts + torch.arange(-size, 2 * size)
        text = rows.tokens // longest
        inside = (seen >= 0) & (seen < count)
        seen_at, blocks_at = seen.clamp(0, count - 1), blocks.clamp(max=count - 1)
        near = (seen[:, None] - blocks[:, :, None]).abs() <= reach
        same = text[seen_at][:, None] == text[blocks_at][:, :, None]
        bias = torch.where(inside[:, None] & near & same, 0.0, MASKED)
        return cls(blocks_at, seen_at, bias[:, None])

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
        return padded.reshape(-1, padded.shape[-1])[: query.shape[0]]
