"""Computes embeddings inside the forward of what torchrun wraps a model in.

The trainer gives a loss the wrapped model. Its forward finds which weights have a part in what it
returns, and waits for the gradients of these: whatever uses weights must happen inside it.
"""

from collections.abc import Callable
from typing import Any, cast

from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Batch = dict[str, Tensor]


def inside_forward(
    model: nn.Module, compute: Callable[[SentenceTransformer, Batch], list[Tensor]], batch: Batch
) -> list[Tensor]:
    """``compute(encoder, batch)`` of the encoder that ``model`` is, or wraps."""
    if not isinstance(model, DistributedDataParallel):
        return compute(cast(SentenceTransformer, model), batch)
    encoder = cast(SentenceTransformer, model.module)
    own = vars(encoder).get("forward")  # that of accelerate, where it casts

    def forward(batch: Batch) -> list[Tensor]:
        restore()
        return compute(encoder, batch)

    def restore() -> None:
        vars(encoder).pop("forward", None)
        if own is not None:
            vars(encoder)["forward"] = own

    vars(encoder)["forward"] = forward
    try:
        found: Any = model(batch)
    finally:
        restore()
    return list(found)
