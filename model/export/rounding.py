"""A checkpoint's weights on the int8 grid, as the artifact stores them."""

import copy

import torch
from sentence_transformers import SentenceTransformer
from transformers.pytorch_utils import Conv1D

from model.export import graph


def round_weights(
    encoder: SentenceTransformer, *, tables_only: bool = False
) -> SentenceTransformer:
    """A copy with the backbone's matrices on the int8 grid of their output channels or rows.

    With ``tables_only`` only the embedding tables are rounded.
    """
    encoder = copy.deepcopy(encoder)
    parts = [
        part
        for part in encoder[0].modules()
        if isinstance(part, torch.nn.Embedding) or not tables_only
    ]
    with torch.no_grad():
        for part in parts:
            axis = 1 if isinstance(part, Conv1D) else 0  # GPT-2's weights are [in, out]
            for parameter in part.parameters(recurse=False):
                if parameter.ndim == 2 and parameter.numel() >= graph.MIN_ROUNDED_ELEMENTS:
                    rounded = graph.round_channels(parameter.numpy(), axis=axis)
                    parameter.copy_(torch.from_numpy(rounded))
    return encoder
