"""Whole numbers of seven bits a byte, the lowest first, as in Parquet, Thrift and Snappy."""

from collections.abc import Callable

import pyarrow as pa


def read_varint(next_byte: Callable[[], int]) -> int:
    """The number that begins with the next byte; raises ArrowInvalid above 64 bits."""
    number = 0
    for shift in range(0, 70, 7):
        byte = next_byte()
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise pa.ArrowInvalid("a number in it has no end")


def write_varint(number: int) -> bytes:
    """The bytes of a number."""
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])
