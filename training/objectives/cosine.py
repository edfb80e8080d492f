"""Cosine similarity in full precision, for every loss that compares embeddings."""

import torch
from sentence_transformers.util import cos_sim
from torch import Tensor


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """Cosines [A, B] of [A, D] and [B, D] in full precision, also under autocast.

    A tuned encoder's loss is a few thousandths, which is also bfloat16's rounding error.
    """
    with torch.autocast(first.device.type, enabled=False):
        return cos_sim(first.float(), second.float())
