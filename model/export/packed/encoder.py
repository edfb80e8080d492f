"""A backbone whose tokens see both sides, on packed tokens: what its families share.

    ids [1, T] -> embed -> block(what all blocks share) -> block -> ... -> finish

Shapes: B texts, L tokens with padding, T tokens in all, D features, H heads.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from s2sent.model.export.packed.attention import PackedRows, attend, gather_parts


class PackedEncoder(nn.Module, ABC):
    """A family's layers on packed tokens. It may change the backbone that it is made of.

    A family has ``num_blocks`` and says how tokens are embedded, what all blocks share in a run,
    such as a bias by distance, and what a block is.
    """

    num_prefix = 0

    def __init__(self, *, heads: int, num_blocks: int, fused: bool) -> None:
        """With ``fused`` attention is ONNX Runtime's own operator."""
        super().__init__()
        self.heads, self.num_blocks, self.fused = heads, num_blocks, fused

    def positions(self, input_ids: Tensor, rows: PackedRows) -> Tensor:
        """The position [1, T] of each token in its text, of ids [B, L]; counted from 0."""
        return rows.positions

    @abstractmethod
    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """The states [1, T, D] of token ids and their `positions`, both [1, T]."""

    @abstractmethod
    def share(self, rows: PackedRows) -> Any:
        """What every block of a run reads besides the states."""

    @abstractmethod
    def block(self, number: int, states: Tensor, rows: PackedRows, shared: Any) -> Tensor:
        """The states [1, T, D] behind block ``number``, counted from 0."""

    def finish(self, states: Tensor) -> Tensor:
        """The states that the backbone gives, of those of its last block."""
        return states

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor
    ) -> tuple[PackedRows, Sequence[Tensor], Tensor]:
        """The packed rows, the states [1, T, D] of the embeddings and blocks, and what it gives."""
        rows = PackedRows.of(attention_mask)
        ids = input_ids.reshape(-1)[rows.tokens][None]
        states = [self.embed(ids, self.positions(input_ids, rows))]
        shared = self.share(rows)
        for number in range(self.num_blocks):
            states.append(self.block(number, states[-1], rows, shared))
        return rows, states, self.finish(states[-1])

    def padded(self, rows: PackedRows, states: Tensor, block: int) -> Tensor:
        """The states [1, T, D] of any block as [B, L, D]."""
        return rows.unpack(states[0])

    def attend(
        self,
        rows: PackedRows,
        joint: Tensor,
        *,
        scale: float,
        bias: Tensor | None = None,
        bias_of: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Attention [1, T, W] of query, key and value side by side, ``joint`` [1, T, 3 W].

        ``bias`` [1 or B, H, L, L] is added to the scores; ``bias_of`` makes it of query and key
        [B, L, W].
        """
        query, key, value = gather_parts(joint, rows.places, rows.places)
        if bias_of is not None:
            bias = bias_of(query, key)
        padded = attend(
            query,
            key,
            value,
            heads=self.heads,
            scale=scale,
            bias=bias,
            mask=rows.mask,
            fused=self.fused,
        )
        return rows.pack(padded)[None]


class ByDistance(nn.Module):
    """A table by the distance between two tokens, such as a bias of each head.

    Buckets of distances are looked up here once, and not in the graph, where another library's
    logarithm could round into the next bucket.
    """

    table: Tensor

    def __init__(self, table: Tensor) -> None:
        """``table`` [..., 2 F + 1] has the distances -F to F; those beyond are as the last ones."""
        super().__init__()
        self.farthest = table.shape[-1] // 2
        self.register_buffer("table", table.detach().contiguous())

    def forward(self, rows: PackedRows) -> Tensor:
        """[..., L, L], where the place (i, j) is of the distance j - i."""
        line = torch.arange(rows.mask.shape[1])
        distance = (line - line[:, None]).clamp(-self.farthest, self.farthest)
        return self.table[..., distance + self.farthest]


def distances(farthest: int) -> Tensor:
    """The distances of `ByDistance`'s table, -farthest to farthest."""
    return torch.arange(-farthest, farthest + 1)
