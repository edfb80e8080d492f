"""Writes embeddings as smaller numbers: half precision, bytes with a fixed scale, or single bits.

Integers are those of Cohere's ``embedding_types`` and of sentence-transformers'
``quantize_embeddings``: a bit is 1 where a component is above 0, eight bits are packed into a byte,
highest first, and ``binary`` is the byte of ``ubinary`` less 128, which fits a signed byte.
"""

import base64
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from service.api.vectors import Embeddings
from service.errors import InvalidInput

Encoding = Literal["float", "base64", "float16", "int8", "binary", "ubinary"]

AS_TEXT = ("base64", "float16")  # in JSON; the others are lists of numbers

# int8 reaches so many times 1/sqrt(components), the root mean square of a component of an embedding
# of length 1.
INT8_RANGE = 8.0
LARGEST_HALF = float(np.finfo(np.float16).max)


def int8_scale(components: int) -> float:
    """What 1 stands for in int8: ``8 / (127 * sqrt(components))``, equal for every embedding.

    Embeddings have one scale, so that products and distances of their integers are comparable.
    """
    return float(INT8_RANGE / (127 * np.sqrt(components)))


def encode(embeddings: Embeddings, encoding: Encoding) -> NDArray[np.generic]:
    """The embeddings as rows of the numbers of ``encoding``, little-endian.

    Binary rows have a byte for every eight components; the last is filled up with zeros.
    """
    match encoding:
        case "float16":
            return embeddings.clip(-LARGEST_HALF, LARGEST_HALF).astype("<f2")
        case "int8":
            steps: Embeddings = np.rint(embeddings / np.float32(int8_scale(embeddings.shape[1])))
            return steps.clip(-127, 127).astype(np.int8)
        case "ubinary":
            return np.packbits(embeddings > 0, axis=1)
        case "binary":
            return (np.packbits(embeddings > 0, axis=1) ^ 0x80).view(np.int8)
        case _:
            return embeddings.astype("<f4", copy=False)


def as_json_items(
    rows: NDArray[np.generic], encoding: Encoding
) -> Sequence[object] | NDArray[np.generic]:
    """What stands for each row in JSON: base64 of its bytes, or its numbers."""
    if encoding in AS_TEXT:
        return [base64.b64encode(row.tobytes()).decode("ascii") for row in rows]
    return rows


def encoding_headers(encoding: Encoding, components: int) -> dict[str, str]:
    """The header of an answer in int8; ``components`` are those of the embeddings in it."""
    return {"x-embedding-scale": repr(int8_scale(components))} if encoding == "int8" else {}


def check_scale(encoding: Encoding, *, normalize: bool) -> None:
    """Raise InvalidInput for int8 of embeddings whose length is not 1."""
    if encoding == "int8" and not normalize:
        raise InvalidInput(
            "encoding is int8, whose scale is that of embeddings of length 1, and normalize is"
            " false. Leave normalize out, or ask for float16.",
            param="encoding",
        )
