"""The encodings of an answer: which numbers each has, how they stand in JSON, and their header."""

import base64
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from s2sent.service.api.vectors import Embeddings
from s2sent.service.encodings import Numbers, int8_scale
from s2sent.service.encodings import encode as encode_numbers
from s2sent.service.errors import InvalidInput

Encoding = Literal["float", "base64", "float16", "int8", "binary", "ubinary"]

NUMBERS: dict[Encoding, Numbers] = {
    "float": "float32",
    "base64": "float32",
    "float16": "float16",
    "int8": "int8",
    "binary": "binary",
    "ubinary": "ubinary",
}
AS_TEXT = ("base64", "float16")  # in JSON; the others are lists of numbers


def encode(embeddings: Embeddings, encoding: Encoding) -> NDArray[np.generic]:
    """The embeddings as rows of the numbers of ``encoding`` (`service.encodings.encode`)."""
    return encode_numbers(embeddings, NUMBERS[encoding])


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
