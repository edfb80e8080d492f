"""A checkpoint's weights on the int8 grid, as the artifact stores them."""

import copy

import torch
from sentence_transformers import SentenceTransformer
from transformers.pytorch_utils import Conv1D

from s2sent.model.export.int8.storage import MIN_ROUNDED_ELEMENTS, round_channels
from s2sent.model.export.options import STORED_AS_INT8
from s2sent.model.network.encoder import find_selector


def round_weights(
    encoder: SentenceTransformer, precision: str = "weight-int8"
) -> SentenceTransformer:
    """A copy with its large matrices on the int8 grid of their output channels or rows.

    They are the backbone's and those behind exits (`SelectorConfig.project_exits`). What the latter
    read are features of different sizes, so each of their rows has a grid of its own: of the
    default model 1 - cosine is 1e-3 at worst, and 2e-2 with a grid for each column. For int8 only
    the embedding tables are rounded, since `multiply_as_int8` rounds the matrices of its products.
    For a precision that stores no int8 the encoder is returned as it is.
    """
    if precision not in STORED_AS_INT8:
        return encoder
    tables_only = precision == "int8"
    encoder = copy.deepcopy(encoder)
    round_matrices(encoder[0], tables_only=tables_only)
    if not tables_only:
        round_projections(encoder)
    return encoder


def round_projections(encoder: SentenceTransformer) -> list[torch.nn.Parameter]:
    """Round the large matrices behind exits in place, as `round_weights` does; returns them."""
    selector = find_selector(encoder)
    rounded = []
    for matrix in selector.projections.values() if selector else ():
        if matrix.numel() >= MIN_ROUNDED_ELEMENTS:
            values = round_channels(matrix.detach().cpu().numpy(), axis=0)
            matrix.data.copy_(torch.from_numpy(values))
            rounded.append(matrix)
    return rounded


def round_matrices(
    backbone: torch.nn.Module, *, tables_only: bool = False
) -> list[torch.nn.Parameter]:
    """Round the matrices in place, as `round_weights` does; returns them."""
    parts = [
        part
        for part in backbone.modules()
        if isinstance(part, torch.nn.Embedding) or not tables_only
    ]
    rounded = []
    for part in parts:
        axis = 1 if isinstance(part, Conv1D) else 0  # GPT-2's weights are [in, out]
        for parameter in part.parameters(recurse=False):
            if parameter.ndim == 2 and parameter.numel() >= MIN_ROUNDED_ELEMENTS:
                values = round_channels(parameter.detach().cpu().numpy(), axis=axis)
                parameter.data.copy_(torch.from_numpy(values))
                rounded.append(parameter)
    return rounded
