"""Attention within packed tokens: the one operator of a decoder that looks at several tokens.

    [1, heads, T, head] -> unpack [B, L', heads * head] -> behind the prefix's keys and values
        -> attention under a mask -> pack [1, T, heads, head]

Transformers calls the function that is registered here (its AttentionInterface). It becomes one
operator of ONNX Runtime, or standard operators.

Shapes: B texts, L tokens with padding, P of a prefix that every text has, L' = L - P, T tokens in
all.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION = "s2sent_packed"  # its name in transformers' registry
ATTENTION_OPERATOR = "com.microsoft::MultiHeadAttention"


@dataclass(frozen=True)
class PackedRows:
    """Where the tokens of a padded batch stand when they are packed.

    tokens: [T], the place of each token in the padded batch, flattened.
    places: [B, L'], the packed token of each place; of padding, any.
    bias: [B, 1, L', P + L'], what is added to attention scores: 0 where a token is seen.
    positions: [1, T], the place of each token in its text.
    """

    tokens: Tensor
    places: Tensor
    bias: Tensor
    positions: Tensor

    @classmethod
    def of(cls, mask: Tensor, num_prefix: int) -> "PackedRows":
        """From a mask [B, L'], padded on the right, of rows behind a prefix."""
        flat = mask.reshape(-1)
        tokens = flat.nonzero().reshape(-1)
        places = (flat.cumsum(0) - 1).clamp(min=0).reshape(mask.shape)
        line = torch.arange(mask.shape[1], device=mask.device)
        seen = (line <= line[:, None]) & (mask[:, None] > 0)  # [B, L', L']
        bias = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        bias = nn.functional.pad(bias, (num_prefix, 0))[:, None]
        positions = num_prefix + line.expand(mask.shape).reshape(-1)[tokens]
        return cls(tokens, places, bias, positions[None])

    def unpack(self, tokens: Tensor) -> Tensor:
        """[T, ...] to [B, L', ...]."""
        return tokens[self.places]

    def pack(self, padded: Tensor) -> Tensor:
        """[B, L', W] to [T, W]."""
        return padded.reshape(-1, padded.shape[-1])[self.tokens]


class _Run(NamedTuple):
    rows: PackedRows
    past: Sequence[tuple[Tensor, Tensor]]
    fused: bool


_running: list[_Run] = []  # for `_attend`, whose arguments transformers chooses


@contextmanager
def attending(
    rows: PackedRows, past: Sequence[tuple[Tensor, Tensor]], *, fused: bool
) -> Iterator[None]:
    """Within this context attention is of ``rows``.

    ``past`` has the prefix's keys and values [1, P, heads * head] by block, if there is a prefix.
    With ``fused`` attention is ONNX Runtime's own operator.
    """
    _running.append(_Run(rows, past, fused))
    try:
        yield
    finally:
        _running.pop()


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of packed query [1, heads, T, head], and key and value with maybe fewer heads.

    Returns [1, T, heads, head], as transformers expects.
    """
    rows, past, fused = _running[-1]
    heads, head = int(module.config.num_attention_heads), int(module.head_dim)
    groups = int(getattr(module.config, "num_key_value_heads", None) or heads)

    def unpacked(states: Tensor, count: int) -> Tensor:  # [B, L', count * head]
        return rows.unpack(states[0].transpose(0, 1).reshape(-1, count * head))

    parts = [unpacked(key, groups), unpacked(value, groups)]
    if past:
        parts = [
            torch.cat([before.expand(part.shape[0], -1, -1), part], dim=1)
            for before, part in zip(past[module.layer_idx], parts, strict=True)
        ]
    keys, values = (_repeat(part, groups, heads, head) for part in parts)
    attention = _FusedAttention.apply if fused else _attention
    scale = head**-0.5 if scaling is None else float(scaling)
    result: Tensor = attention(unpacked(query, heads), keys, values, rows.bias, heads, scale)
    return rows.pack(result).reshape(1, -1, heads, head), None


AttentionInterface.register(ATTENTION, _attend)


def _repeat(states: Tensor, groups: int, heads: int, head: int) -> Tensor:
    """Each of ``groups`` heads for all the query heads that share it."""
    if groups == heads:
        return states
    each = states.reshape(states.shape[0], -1, groups, 1, head)
    return each.expand(-1, -1, -1, heads // groups, -1).reshape(states.shape[0], -1, heads * head)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, heads: int, scale: float
) -> Tensor:
    """Attention [B, L', heads * head] of query, and of key and value [B, P + L', heads * head]."""
    split = [
        part.reshape(part.shape[0], -1, heads, query.shape[-1] // heads).transpose(1, 2)
        for part in (query, key, value)
    ]
    scores = split[0] @ split[1].transpose(2, 3) * scale + bias
    return (scores.softmax(-1) @ split[2]).transpose(1, 2).reshape(query.shape)


class _FusedAttention(torch.autograd.Function):
    """`_attention`, traced as ONNX Runtime's operator.

    ONNX Runtime's contrib operators, com.microsoft.MultiHeadAttention.
    """

    @staticmethod
    def symbolic(g: Any, *inputs: Any) -> Any:
        *parts, bias, heads, scale = inputs
        absent = g.op("prim::Constant")
        absent.setType(torch._C.OptionalType.ofTensor())
        return g.op(
            ATTENTION_OPERATOR, *parts, absent, absent, bias, num_heads_i=heads, scale_f=scale
        )

    @staticmethod
    def forward(
        _context: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        heads: int,
        scale: float,
    ) -> Tensor:
        return _attention(query, key, value, bias, heads, scale)
