"""Poolings of token states into a sentence's vector, as matrix products wherever they are linear.

Shapes: B texts, L tokens (padded), D features. Modes are sentence-transformers'
(https://sbert.net/docs/package_reference/sentence_transformer/modules.html#pooling).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from s2sent.model.network.selector_states import pool_tokens

MAX = "max"  # the one mode that is no sum over tokens


def pool_states(
    states: Tensor, mask: Tensor, modes: Sequence[str], read_positions: Tensor | None = None
) -> Tensor:
    """Vectors [B, modes * D] of states [B, L, D] and their mask, one mode behind the other.

    All modes but "max" are one product; "token" is the token at ``read_positions``.
    """
    if len(modes) == 1 and modes[0] in ("mean", "cls", "token"):
        return pool_tokens(states, mask, modes[0], read_positions)
    pooled: dict[str, Tensor] = {}
    if linear := [mode for mode in modes if mode != MAX]:
        weights = mask.to(states.dtype)
        rows = torch.stack([_row(weights, mode) for mode in linear], dim=1)
        pooled.update(zip(linear, (rows @ states).unbind(1), strict=True))
    if MAX in modes:
        is_padding = mask[:, :, None] == 0
        pooled[MAX] = states.masked_fill(is_padding, float("-inf")).amax(dim=1)
    return torch.cat([pooled[mode] for mode in modes], dim=-1)


def _row(mask: Tensor, mode: str) -> Tensor:
    """The weights [B, L] of the tokens, whose weighted sum is the pooled vector."""
    place = mask.cumsum(1) * mask  # 1, 2, ... from the first token that is pooled
    count = mask.sum(1, keepdim=True)
    match mode:
        case "mean":
            return mask / count
        case "mean_sqrt_len_tokens":
            return mask / count.sqrt()
        case "weightedmean":
            weight = torch.ones_like(mask).cumsum(1) * mask  # behind tokens that are not pooled too
            return weight / weight.sum(1, keepdim=True)
        case "cls":
            return (place == 1).to(mask.dtype)
        case "lasttoken":
            return (place == count).to(mask.dtype)
    raise ValueError(f"the pooling {mode!r} has no weights.")
