"""What the engine answers with."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """The answer to one request; waiting and running times are means over its texts."""

    embeddings: NDArray[np.float32]  # [n, dim], not normalised, row i for text i
    tokens: list[int]  # per text, after truncation, special tokens included
    truncated: list[bool]
    tokenize_seconds: float
    queue_seconds: float
    inference_seconds: float


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether traffic should be sent here, and why not."""

    ready: bool
    reason: str
