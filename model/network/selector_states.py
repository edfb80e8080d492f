"""What a selector does to token states [B, L, D]: masks, norms, pooling and weighted sums."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

NORM_EPSILON = 1e-12  # beside the mean square of a state


def pool_tokens(
    states: Tensor, attention_mask: Tensor, pooling: str, read_positions: Tensor | None = None
) -> Tensor:
    """Sentence vectors [B, D] of states [B, L, D]: the mean of the tokens, or one of them."""
    mask = attention_mask.to(squeeze_dtype([states]))
    rows = pooling_row(mask, pooling, read_positions)
    return project(rows, states)[:, 0].to(states.dtype)


def scope_mask(mask: Tensor, scope: str, read_positions: Tensor | None) -> Tensor:
    """The tokens [B, L] of ``mask`` that the squeeze sees: "all", the "prefix" or the "token"."""
    if scope == "all":
        return mask
    if read_positions is None:
        raise ValueError(
            f"the features have no read_positions, which {scope!r} needs: put the selector behind "
            "a TemplateTransformer."
        )
    places = torch.arange(mask.shape[1], device=mask.device)
    read = read_positions[:, None]
    return mask * (places <= read if scope == "prefix" else places == read).to(mask.dtype)


def normed(states: Tensor, norm: str) -> Tensor:
    """States [..., D] divided by their root mean square ("rms") or length; "none": as is."""
    if norm == "none":
        return states
    exact = states.to(squeeze_dtype([states]))
    squares = exact.square()
    power = squares.mean(-1, keepdim=True) if norm == "rms" else squares.sum(-1, keepdim=True)
    return (exact * (power + NORM_EPSILON).rsqrt()).to(states.dtype)


def depth_among(states: Sequence[Tensor], token_embeddings: Tensor) -> int:
    """The index of ``token_embeddings`` in ``states``, which losses that drop layers lower."""
    for depth, state in enumerate(states):
        if state is token_embeddings:
            return depth
    warnings.warn(
        "token_embeddings is none of all_layer_embeddings: assuming full depth.", stacklevel=3
    )
    return len(states) - 1


def squeeze_dtype(blocks: Sequence[Tensor]) -> torch.dtype:
    """The dtype of sums over states: theirs, float32 at least."""
    return torch.promote_types(blocks[0].dtype, torch.float32)


def pooling_row(mask: Tensor, pooling: str, read_positions: Tensor | None = None) -> Tensor:
    """Row [B, 1, L]; its product with the tokens is the pooled vector."""
    if pooling == "token":
        mask = scope_mask(mask, "token", read_positions)
    if pooling == "cls":
        mask = (mask.cumsum(1) == 1) * mask
    return (mask / mask.sum(1, keepdim=True).clamp(min=1))[:, None]


def project(rows: Tensor, block: Tensor) -> Tensor:
    """rows [B, F, L] @ block [B, L, D], in full precision also under autocast."""
    if block.dtype != rows.dtype:  # a trace would keep even a conversion without effect
        block = block.to(rows.dtype)
    with torch.autocast(block.device.type, enabled=False):
        return rows @ block


def weighted_sum(weights: Tensor, values: Sequence[Tensor]) -> Tensor:
    """sum_n weights[n] * values[n], with one product in memory at a time."""
    total = torch.zeros_like(values[0])
    for weight, value in zip(weights.unbind(0), values, strict=True):
        total = total + weight * value
    return total


def mean(values: Sequence[Tensor]) -> Tensor:
    """The mean of equally shaped tensors, with one sum in memory."""
    return sum(values[1:], values[0]) / len(values)
