"""Embeds the columns of a batch in one forward pass.

The trainer gives a loss the model that torchrun wraps. Its forward finds which weights have a part
in what it returns, and waits for the gradients of these: whatever uses weights must happen inside
it.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

Batch = dict[str, Tensor]
Features = Iterable[Batch]  # of each column


def embed_together(model: nn.Module, columns: Features, padding: int) -> list[Tensor]:
    """The embeddings [B, D] of each column, from one forward pass; ``padding`` is a token id."""
    columns = list(columns)
    batch = join_columns(columns, padding)
    return list(model(batch)["sentence_embedding"].chunk(len(columns)))


def join_columns(columns: Features, padding: int) -> Batch:
    """The rows of all columns as one batch, a column after the other; ``padding`` is a token id."""
    columns = list(columns)
    longest = max(column["input_ids"].shape[1] for column in columns)
    return {
        name: torch.cat([_padded(column[name], longest, name, padding) for column in columns])
        for name in columns[0]
        if isinstance(columns[0][name], Tensor)
    }


def _padded(rows: Tensor, longest: int, name: str, padding: int) -> Tensor:
    """[B, L] padded to [B, longest]: token ids with ``padding``, others with 0; [B] as it is."""
    if rows.dim() == 1:
        return rows
    value = padding if name == "input_ids" else 0
    return functional.pad(rows, (0, longest - rows.shape[1]), value=value)


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
