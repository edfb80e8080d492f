"""Embeddings as smaller numbers: half precision, bytes with a fixed scale, or single bits.

Integers are those of Cohere's ``embedding_types`` and of sentence-transformers'
``quantize_embeddings``: a bit is 1 where a component is above 0, eight bits are packed into a byte,
highest first, and ``binary`` is the byte of ``ubinary`` less 128, which fits a signed byte.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Numbers = Literal["float32", "float16", "int8", "binary", "ubinary"]

# int8 reaches so many times 1/sqrt(components), the root mean square of a component of an embedding
# of length 1.
INT8_RANGE = 8.0
LARGEST_HALF = float(np.finfo(np.float16).max)


def int8_scale(components: int) -> float:
    """What 1 stands for in int8: ``8 / (127 * sqrt(components))``, equal for every embedding.

    Embeddings have one scale, so that products and distances of their integers are comparable.
    """
    return float(INT8_RANGE / (127 * np.sqrt(components)))


def encode(embeddings: NDArray[np.float32], numbers: Numbers) -> NDArray[np.generic]:
    """The embeddings [n, dim] as rows of ``numbers``, little-endian.

    Rows of bits have a byte for every eight components; the last is filled up with zeros.
    """
    match numbers:
        case "float32":
            return embeddings.astype("<f4", copy=False)
        case "float16":
            return embeddings.clip(-LARGEST_HALF, LARGEST_HALF).astype("<f2")
        case "int8":
            scale = np.float32(int8_scale(embeddings.shape[1]))
            steps: NDArray[np.float32] = np.rint(embeddings / scale)
            return steps.clip(-127, 127).astype(np.int8)
        case "binary":
            return (np.packbits(embeddings > 0, axis=1) ^ 0x80).view(np.int8)
        case "ubinary":
            return np.packbits(embeddings > 0, axis=1)
