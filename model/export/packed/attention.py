"""Packed rows, and the one operator of a packed backbone that looks at several tokens.

    packed tokens [T, W] -> unpack [B, L, W] -> attention within each row -> pack [T, W]

The operator is ONNX Runtime's MultiHeadAttention, or standard operators.

Shapes: B texts, L tokens with padding, T tokens in all, S tokens that are seen, W = heads * head.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

ATTENTION_OPERATOR = "com.microsoft::MultiHeadAttention"
MASKED = torch.finfo(torch.float32).min  # what hides a token, added to its score
# ONNX Runtime sums the products of a head wider than this in another order where fewer tokens than
# these are seen (MLAS, MlasSgemmOperation: the depth of its blocks depends on their width).
WIDEST_HEAD, FEWEST_SEEN = 128, 65


@dataclass(frozen=True)
class PackedRows:
    """Where the tokens of a padded batch stand when they are packed.

    mask: int64 [B, L] of 0 and 1.
    tokens: [T], the place of each token in the padded batch, flattened.
    places: [B, L], the packed token of each place; of padding, any.
    positions: [1, T], the place of each token in its text, counted from ``num_prefix``.
    """

    mask: Tensor
    tokens: Tensor
    places: Tensor
    positions: Tensor

    @classmethod
    def of(cls, mask: Tensor, num_prefix: int = 0) -> "PackedRows":
        """From a mask [B, L] of rows that stand behind a prefix."""
        flat = mask.reshape(-1)
        tokens = flat.nonzero().reshape(-1)
        places = (flat.cumsum(0) - 1).clamp(min=0).reshape(mask.shape)
        positions = num_prefix - 1 + mask.cumsum(1).reshape(-1)[tokens]
        return cls(mask, tokens, places, positions[None])

    def unpack(self, tokens: Tensor) -> Tensor:
        """[T, ...] to [B, L, ...]."""
        return tokens[self.places]

    def pack(self, padded: Tensor) -> Tensor:
        """[B, L, W] to [T, W]."""
        return padded.reshape(-1, padded.shape[-1])[self.tokens]


def gather_parts(joint: Tensor, queries: Tensor, keys: Tensor) -> list[Tensor]:
    """Of ``joint`` [1, T, 3 W] the query of some packed tokens, and key and value of others.

    ``queries`` [B, L] and ``keys`` [B, S] are their places. Each part is gathered on all cores; a
    split would copy on one.
    """
    thirds = joint.reshape(-1, int(joint.shape[-1]) // 3)
    return [thirds[3 * places + part] for part, places in enumerate((queries, keys, keys))]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    heads: int,
    scale: float,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    fused: bool,
) -> Tensor:
    """Attention [B, L, W] of query [B, L, W], and of key and value [B, S, W].

    ``bias`` [1 or B, 1 or heads, L, S] is added to the scores; tokens whose ``mask`` [B, S] is 0
    are not seen. With ``fused`` it is one operator of ONNX Runtime when it is traced.
    """
    if fused and int(query.shape[-1]) // heads > WIDEST_HEAD:
        lacking: Any = (FEWEST_SEEN - torch.ones_like(key[0, :, 0]).long().sum()).clamp(min=0)
        key, value = (pad(part, (0, 0, 0, lacking)) for part in (key, value))
        bias = None if bias is None else pad(bias, (0, lacking), value=MASKED)
        mask = None if mask is None else pad(mask, (0, lacking))
    attention = _FusedAttention.apply if fused else _attention
    result: Tensor = attention(query, key, value, bias, mask, heads, scale)
    return result


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    heads: int,
    scale: float,
) -> Tensor:
    split = [
        part.reshape(part.shape[0], -1, heads, query.shape[-1] // heads).transpose(1, 2)
        for part in (query, key, value)
    ]
    scores = split[0] @ split[1].transpose(2, 3) * scale
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores + (1 - mask[:, None, None]) * MASKED
    return (scores.softmax(-1) @ split[2]).transpose(1, 2).reshape(query.shape)


class _FusedAttention(torch.autograd.Function):
    """`_attention`, traced as ONNX Runtime's operator.

    ONNX Runtime's contrib operators, com.microsoft.MultiHeadAttention.
    """

    @staticmethod
    def symbolic(g: Any, *inputs: Any) -> Any:
        *parts, bias, mask, heads, scale = inputs
        absent = g.op("prim::Constant")
        absent.setType(torch._C.OptionalType.ofTensor())
        if mask is not None:
            mask = g.op("Cast", mask, to_i=torch.onnx.TensorProtoDataType.INT32)
        return g.op(
            ATTENTION_OPERATOR,
            *parts,
            absent,
            absent if mask is None else mask,
            absent if bias is None else bias,
            num_heads_i=heads,
            scale_f=scale,
            mask_filter_value_f=MASKED,
        )

    @staticmethod
    def forward(_context: Any, *inputs: Any) -> Tensor:
        return _attention(*inputs)
