"""T5's encoder on packed tokens: norms before each part, a bias of each head by distance."""

from typing import Any

from torch import Tensor

from s2sent.model.export.packed.attention import PackedRows
from s2sent.model.export.packed.encoder import ByDistance, PackedEncoder, distances
from s2sent.model.export.packed.simplify import join_linears, simplify


class PackedT5(PackedEncoder):
    """`transformers.T5EncoderModel` on packed tokens."""

    def __init__(self, backbone: Any, *, fused: bool) -> None:
        stack, config = backbone.encoder, backbone.config
        super().__init__(heads=config.num_heads, num_blocks=len(stack.block), fused=fused)
        self.stack = stack
        simplify(stack)
        first = stack.block[0].layer[0].SelfAttention
        farthest = config.relative_attention_max_distance
        buckets = first._relative_position_bucket(
            distances(farthest),
            num_buckets=config.relative_attention_num_buckets,
            max_distance=farthest,
        )
        self.bias = ByDistance(first.relative_attention_bias.weight[buckets].T)
        for block in stack.block:
            attention = block.layer[0].SelfAttention
            attention.joint = join_linears(attention.q, attention.k, attention.v)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        states: Tensor = self.stack.embed_tokens(ids)
        return states

    def share(self, rows: PackedRows) -> Tensor:
        bias: Tensor = self.bias(rows)[None]
        return bias

    def block(self, number: int, states: Tensor, rows: PackedRows, shared: Tensor) -> Tensor:
        whole, forward = self.stack.block[number].layer
        attention = whole.SelfAttention
        joint = attention.joint(whole.layer_norm(states))
        seen = self.attend(rows, joint, scale=1.0, bias=shared)  # T5 does not scale
        result: Tensor = forward(states + attention.o(seen))
        if number == self.num_blocks - 1:  # its states are known behind this norm only
            result = self.stack.final_layer_norm(result)
        return result
