"""MPNet on packed tokens: BERT with a bias of each head by distance."""

from typing import Any

from torch import Tensor

from s2sent.model.export.packed.attention import PackedRows
from s2sent.model.export.packed.encoder import ByDistance, PackedEncoder, distances
from s2sent.model.export.packed.simplify import join_linears

FARTHEST = 128  # `MPNetEncoder.relative_position_bucket` has one bucket for all beyond


class PackedMPNet(PackedEncoder):
    """`transformers.MPNetModel` on packed tokens."""

    def __init__(self, backbone: Any, *, fused: bool) -> None:
        layers = backbone.encoder.layer
        heads = backbone.config.num_attention_heads
        super().__init__(heads=heads, num_blocks=len(layers), fused=fused)
        self.embeddings, self.layers = backbone.embeddings, layers
        for layer in layers:
            attention = layer.attention.attn
            attention.joint = join_linears(attention.q, attention.k, attention.v)
        encoder = backbone.encoder
        buckets = encoder.relative_position_bucket(
            distances(FARTHEST), num_buckets=backbone.config.relative_attention_num_buckets
        )
        self.bias = ByDistance(encoder.relative_attention_bias.weight[buckets].T)

    def positions(self, input_ids: Tensor, rows: PackedRows) -> Tensor:
        """Counted behind the padding id, which has its own, also where a text spells it out."""
        padding = self.embeddings.padding_idx
        counts = (input_ids != padding).long()
        counted: Tensor = counts.cumsum(1) * counts + padding
        return counted.reshape(-1)[rows.tokens][None]

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        states: Tensor = self.embeddings(input_ids=ids, position_ids=positions)
        return states

    def share(self, rows: PackedRows) -> Tensor:
        bias: Tensor = self.bias(rows)[None]
        return bias

    def block(self, number: int, states: Tensor, rows: PackedRows, shared: Tensor) -> Tensor:
        layer: Any = self.layers[number]
        attention = layer.attention.attn
        scale = attention.attention_head_size**-0.5
        seen = self.attend(rows, attention.joint(states), scale=scale, bias=shared)
        attended = layer.attention.LayerNorm(attention.o(seen) + states)
        result: Tensor = layer.output(layer.intermediate(attended), attended)
        return result
