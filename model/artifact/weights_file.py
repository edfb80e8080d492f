"""Weights of a graph above two gigabytes, which stand in a file of their own beside it.

A protocol buffer has at most 2 GiB, so ONNX lets initializers be external data: a place in another
file (https://onnx.ai/onnx/repo-docs/ExternalData.html). ONNX Runtime would open that file itself;
here the places are found in the bytes that were verified, and it is given arrays.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from s2sent.model.artifact.graph_policy import (
    Fields,
    GraphRefused,
    Value,
    content_of,
    fields_by_number,
)

WEIGHTS_LOCATION = "model.onnx_data"  # as the graph names it, beside the graph
_MAX_DIGITS = 20  # of an offset
DATA_TYPES: dict[Value, tuple[str, int]] = {  # TensorProto.DataType: numpy's name, and bytes
    **{1: ("float32", 4), 2: ("uint8", 1), 3: ("int8", 1), 6: ("int32", 4)},
    **{7: ("int64", 8), 10: ("float16", 2), 11: ("float64", 8)},
}


class Weight(NamedTuple):
    """An initializer: its name, numpy's name of its type, its shape and its bytes."""

    name: str
    kind: str
    shape: tuple[int, ...]
    content: memoryview


def weights_of(graph: bytes | memoryview, data: memoryview) -> Iterator[Weight]:
    """The initializers of the main graph that stand in ``data``, without a copy.

    Raises GraphRefused for one of another file, of an unknown type, or outside of ``data``.
    """
    # The numbers of the fields are those of onnx.proto.
    for main in fields_by_number(memoryview(graph)).get(7, []):
        for tensor in map(fields_by_number, fields_by_number(main).get(5, [])):
            locations = tensor.get(14, [0])  # data_location; the last one counts
            if locations[-1] == 1:  # EXTERNAL
                yield _weight(tensor, data)
            elif 13 in tensor or any(locations):  # external_data
                raise GraphRefused("it has a tensor whose data is in another file and in this one")


def _weight(tensor: Fields, data: memoryview) -> Weight:
    entries = [fields_by_number(entry) for entry in tensor.get(13, [])]
    place = {_text(entry.get(1)): _text(entry.get(2)) for entry in entries}
    kind, item = DATA_TYPES.get(tensor.get(2, [0])[-1], ("", 0))
    start = place.get("offset", "0")
    is_number = start.isascii() and start.isdecimal() and len(start) <= _MAX_DIGITS
    if place.get("location") != WEIGHTS_LOCATION or not kind or not is_number:
        raise GraphRefused(f"it has a tensor whose data is in another file than {WEIGHTS_LOCATION}")
    dims = tensor.get(1, [])
    shape = tuple(dim for dim in dims if isinstance(dim, int) and dim <= len(data))
    first, size = int(start), math.prod(shape) * item
    if len(shape) != len(dims) or first + size > len(data):
        raise GraphRefused(f"it has a tensor whose data is not in {WEIGHTS_LOCATION}")
    return Weight(_text(tensor.get(8)), kind, shape, data[first : first + size])


def _text(values: list[Value] | None) -> str:
    return str(content_of(values[-1]), "utf-8", "replace") if values else ""
