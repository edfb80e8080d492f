"""DeBERTa v2 and v3 on packed tokens: scores of contents, and of contents and distances.

He, Liu, Gao, Chen, "DeBERTa", arXiv 2006.03654, Eq. 4.
"""

from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from s2sent.model.export.packed.attention import PackedRows
from s2sent.model.export.packed.encoder import ByDistance, PackedEncoder, distances
from s2sent.model.export.packed.simplify import join_linears


class PackedDeberta(PackedEncoder):
    """`transformers.DebertaV2Model` on packed tokens."""

    def __init__(self, backbone: Any, *, fused: bool) -> None:
        self_attention = backbone.encoder.layer[0].attention.self
        super().__init__(
            heads=self_attention.num_attention_heads,
            num_blocks=len(backbone.encoder.layer),
            fused=fused,
        )
        self.embeddings, self.encoder = backbone.embeddings, backbone.encoder
        kinds = [kind for kind in ("c2p", "p2c") if kind in self_attention.pos_att_type]
        self.scale = (self_attention.attention_head_size * (1 + len(kinds))) ** -0.5
        if not self_attention.relative_attention:
            kinds = []
        self.buckets = _buckets(self_attention) if kinds else None
        for layer in self.encoder.layer:
            attention = layer.attention.self
            parts = (attention.query_proj, attention.key_proj, attention.value_proj)
            attention.joint = join_linears(*parts)
            if kinds:
                attention.by_distance = _Disentangled(
                    attention, self.encoder.get_rel_embedding(), kinds, self.scale
                )

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        states: Tensor = self.embeddings(input_ids=ids, position_ids=positions)
        return states

    def share(self, rows: PackedRows) -> Tensor | None:
        return self.buckets(rows) if self.buckets else None

    def block(self, number: int, states: Tensor, rows: PackedRows, shared: Tensor | None) -> Tensor:
        layer: Any = self.encoder.layer[number]
        attention = layer.attention.self
        bias_of = partial(attention.by_distance, buckets=shared) if shared is not None else None
        seen = self.attend(rows, attention.joint(states), scale=self.scale, bias_of=bias_of)
        attended = layer.attention.output(seen, states)
        result: Tensor = layer.output(layer.intermediate(attended), attended)
        if number == 0 and self.encoder.conv is not None:
            return self._with_neighbours(states, result, rows)
        return result

    def _with_neighbours(self, before: Tensor, states: Tensor, rows: PackedRows) -> Tensor:
        """Add a convolution of neighbouring tokens, as large DeBERTa v2 does behind one block."""
        padded = rows.unpack(before[0]) * rows.mask[..., None]
        mixed: Tensor = self.encoder.conv(padded, rows.unpack(states[0]), rows.mask)
        return rows.pack(mixed)[None]


class _Disentangled(nn.Module):
    """What contents and distances add to the scores of a block."""

    def __init__(
        self, attention: Any, embeddings: Tensor, kinds: Collection[str], scale: float
    ) -> None:
        super().__init__()
        rows = embeddings[: 2 * attention.pos_ebd_size]
        self.heads = attention.num_attention_heads
        shared = attention.share_att_key
        key = attention.key_proj if shared else getattr(attention, "pos_key_proj", None)
        query = attention.query_proj if shared else getattr(attention, "pos_query_proj", None)
        self.keys = self._heads_of(key, rows, scale) if "c2p" in kinds else None
        self.queries = self._heads_of(query, rows, scale) if "p2c" in kinds else None

    def _heads_of(self, projection: Any, rows: Tensor, scale: float) -> nn.Parameter:
        """The projected embeddings of distances by head, [H, head, buckets], scaled."""
        with torch.no_grad():
            split = projection(rows).reshape(len(rows), self.heads, -1)
            return nn.Parameter(split.permute(1, 2, 0).contiguous() * scale)

    def forward(self, query: Tensor, key: Tensor, buckets: Tensor) -> Tensor:
        """The bias [B, H, L, L] of query and key [B, L, W] and the ``buckets`` [L, L] of pairs."""
        terms = []
        if self.keys is not None:
            terms.append(_pick(self._split(query) @ self.keys, buckets))
        if self.queries is not None:
            terms.append(_pick(self._split(key) @ self.queries, buckets.T).transpose(2, 3))
        return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]

    def _split(self, states: Tensor) -> Tensor:
        """[B, L, W] to [B, H, L, head]."""
        return states.reshape(*states.shape[:2], self.heads, -1).transpose(1, 2)


def _pick(scores: Tensor, buckets: Tensor) -> Tensor:
    """[B, H, L, L]: of each token's scores [B, H, L, buckets] that of its distance to another."""
    return scores.gather(-1, buckets.expand(*scores.shape[:2], -1, -1))


def _buckets(attention: Any) -> ByDistance:
    """The row of the embeddings of distances for a pair of tokens, i - j."""
    span, farthest = attention.pos_ebd_size, attention.max_relative_positions
    behind = -distances(farthest)
    if attention.position_buckets > 0:
        behind = _log_buckets(behind, attention.position_buckets, farthest)
    return ByDistance((behind.long() + span).clamp(0, 2 * span - 1))


def _log_buckets(behind: Tensor, buckets: int, farthest: int) -> Tensor:
    """Distances up to half of the ``buckets`` as they are, and those beyond on a logarithmic scale.

    As `make_log_bucket_position` of transformers, whose module cannot be imported without warnings.
    """
    middle = buckets // 2
    far = behind.abs().clamp(min=middle) / middle
    step = torch.log(far) / torch.log(torch.tensor((farthest - 1) / middle)) * (middle - 1)
    logarithmic = (torch.ceil(step) + middle) * behind.sign()
    return torch.where(behind.abs() <= middle, behind.float(), logarithmic)
