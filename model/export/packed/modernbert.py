"""ModernBERT on packed tokens: rotary positions, and blocks whose tokens see their neighbours only.

Warner et al., arXiv 2412.13663.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from s2sent.model.export.packed.attention import PackedRows
from s2sent.model.export.packed.encoder import PackedEncoder
from s2sent.model.export.packed.windows import Windows

ROTATION_OPERATOR = "com.microsoft::RotaryEmbedding"
# Of each token's query, key and value: numbers [1, 3 T], and cosines and sines [3 T, head / 2].
Rotation = tuple[Tensor, Tensor, Tensor]


class _Shared(NamedTuple):
    """The windows of a run, and the rotation of blocks that see whole texts or windows."""

    windows: Windows
    whole: Rotation | None
    local: Rotation | None


class PackedModernBert(PackedEncoder):
    """`transformers.ModernBertModel` on packed tokens."""

    def __init__(self, backbone: Any, *, fused: bool) -> None:
        config = backbone.config
        blocks = len(backbone.layers)
        super().__init__(heads=config.num_attention_heads, num_blocks=blocks, fused=fused)
        config.reference_compile = False  # a compiled embedding cannot be traced
        self.backbone = backbone
        self.reach = config.local_attention // 2
        self.is_local = [_is_local(layer) for layer in backbone.layers]

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        states: Tensor = self.backbone.embeddings(input_ids=ids)
        return states

    def share(self, rows: PackedRows) -> _Shared:
        return _Shared(
            Windows.of(rows, self.reach), self._rotation(rows, False), self._rotation(rows, True)
        )

    def _rotation(self, rows: PackedRows, local: bool) -> Rotation | None:
        """Of the blocks that see windows, or of those that see whole texts; None without any."""
        if local not in self.is_local:
            return None
        layer, states = self.backbone.layers[self.is_local.index(local)], rows.positions.float()
        if hasattr(layer.attn, "rotary_emb"):  # transformers 4
            both = layer.attn.rotary_emb(states, position_ids=rows.positions)
        else:
            both = self.backbone.rotary_emb(states, rows.positions, layer.attention_type)
        half = int(both[0].shape[-1]) // 2  # the other half has the same
        cosines, sines = (part[..., :half] for part in both)
        of_all = [cosines] * 2 + [torch.ones_like(cosines)], [sines] * 2 + [torch.zeros_like(sines)]
        cosines, sines = (torch.stack(parts, dim=2).reshape(-1, half) for parts in of_all)
        return torch.arange(cosines.shape[0])[None], cosines, sines

    def block(self, number: int, states: Tensor, rows: PackedRows, shared: _Shared) -> Tensor:
        layer = self.backbone.layers[number]
        attention, is_local = layer.attn, self.is_local[number]
        rotation = shared.local if is_local else shared.whole
        joint = self._rotated(attention.Wqkv(layer.attn_norm(states)), rotation)
        scale = attention.head_dim**-0.5
        if is_local:
            seen = shared.windows.attend(joint, heads=self.heads, scale=scale, fused=self.fused)
        else:
            seen = self.attend(rows, joint, scale=scale)
        states = states + attention.Wo(seen)
        result: Tensor = states + layer.mlp(layer.mlp_norm(states))
        return result

    def _rotated(self, joint: Tensor, rotation: Any) -> Tensor:
        """``joint`` [1, T, 3 W] with query and key rotated (RoFormer, arXiv 2104.09864)."""
        width = int(joint.shape[-1])  # a number in the graph, whose shapes follow from it
        rotate: Any = _FusedRotation.apply if self.fused else _rotate
        rotated: Tensor = rotate(joint.reshape(1, -1, width // 3), *rotation)
        return rotated.reshape(1, -1, width)

    def finish(self, states: Tensor) -> Tensor:
        normed: Tensor = self.backbone.final_norm(states)
        return normed


def _rotate(states: Tensor, places: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Heads side by side [1, R, W], rotated by the cosines and sines at their places [1, R]."""
    first, second = states.reshape(states.shape[1], -1, 2, cosines.shape[-1]).unbind(2)
    cosines, sines = cosines[places[0], None], sines[places[0], None]
    rotated = [first * cosines - second * sines, second * cosines + first * sines]
    return torch.stack(rotated, dim=2).reshape(states.shape)


class _FusedRotation(torch.autograd.Function):
    """`_rotate`, traced as ONNX Runtime's contrib operator com.microsoft.RotaryEmbedding."""

    @staticmethod
    def symbolic(g: Any, *inputs: Any) -> Any:
        return g.op(ROTATION_OPERATOR, *inputs)

    @staticmethod
    def forward(_context: Any, *inputs: Any) -> Tensor:
        return _rotate(*inputs)


def _is_local(layer: Any) -> bool:
    kind = getattr(layer, "attention_type", None)  # of transformers 5
    if kind is not None:
        return bool(kind == "sliding_attention")
    return bool(layer.attn.local_attention != (-1, -1))
