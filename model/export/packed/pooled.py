"""The whole encoder on packed tokens, as it is traced: a packed backbone, and what pools it.

Shapes: B texts, L tokens with padding, T tokens in all, D features.
"""

from collections.abc import Collection

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from s2sent.model.export.packed.families import pack_backbone
from s2sent.model.network.pooled import PooledEncoder


class PooledPacked(PooledEncoder):
    """A `PooledEncoder` whose backbone runs on packed tokens; rows are padded on the right.

    Where one token is read and nothing else of its text is looked at, the states that `forward`
    returns are those of that token, [B, 1, D]. Behind them it returns what the block behind the
    deepest that is pooled reads, [1, T, D], at each smaller depth in ``exits``.
    """

    def __init__(
        self, encoder: SentenceTransformer, depths: Collection[int] = (), *, fused: bool = True
    ) -> None:
        """With ``fused`` attention is ONNX Runtime's own operator."""
        super().__init__(encoder, depths)
        prefix = self.template.prefix if self.template else ()
        self.packed = pack_backbone(self.backbone, prefix, fused=fused)
        del self.backbone
        scope = self.selector.config.squeeze_scope if self.selector else "token"
        gated = self.selector is not None and self.selector.spatial_selection is not None
        self.reads_one_token = self.modes == ("token",) and (scope == "token" or not gated)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        pooling_mask: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Run on int64 inputs [B, L]; a decoder takes the first for its template's prefix."""
        rows, states, last = self.packed(input_ids, attention_mask)
        if self.selector is None:
            states = [*states[:-1], last]
        read = self._read_positions(attention_mask)
        pooled = list(states)
        if self.reads_one_token and read is not None:
            place = (read - self.packed.num_prefix)[:, None]
            token = rows.places.gather(1, place).reshape(-1)
            for number in self.blocks:
                pooled[number] = states[number].index_select(1, token).transpose(0, 1)
            outputs = self.pool(pooled, torch.ones_like(place), torch.zeros_like(read))
        else:
            for number in self.blocks:
                pooled[number] = self.packed.padded(rows, states[number], number)
            mask = attention_mask if pooling_mask is None else pooling_mask
            outputs = self.pool(pooled, mask, read)
        deepest = [self.exits[depth][-1] for depth in sorted(self.exits)[:-1]]
        return (*outputs, *(states[number] for number in deepest))
