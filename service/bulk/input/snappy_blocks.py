"""Snappy data decompressed block after block.

https://github.com/google/snappy/blob/main/format_description.txt has no blocks, but encoders
compress 64 KiB at a time without a look at what is before: in C++, which Java and Python use, in
Go, in Rust and in aircompressor.
"""

from collections.abc import Iterator

import pyarrow as pa

from s2sent.service.bulk.input.varints import read_varint, write_varint

BLOCK_BYTES = 1 << 16
MOST_COMPRESSED = 32 + BLOCK_BYTES + BLOCK_BYTES // 6  # MaxCompressedLength of snappy.cc

# Of an element by its first byte, the tag: the bytes that it takes, and those that it makes.
TAKEN = [((tag >> 2) + 2, 2, 3, 5)[tag & 3] for tag in range(256)]
MADE = [(tag >> 2 & 7) + 4 if tag & 3 == 1 else (tag >> 2) + 1 for tag in range(256)]
LONG_LITERAL = 60 << 2  # tags of literals from here on are followed by a length


def decompress_blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """What the pieces together are decompressed, a block at a time.

    Raises ArrowInvalid for damaged data, and for an encoder that makes no such blocks.
    """
    codec = pa.Codec("snappy")
    held = bytearray(next(pieces, b""))
    first = iter(bytes(held[:10]))
    left = read_varint(lambda: next(first, 0))
    at = len(write_varint(left))
    while left > 0:
        while len(held) - at < MOST_COMPRESSED and (piece := next(pieces, b"")):
            held = held[at:] + piece
            at = 0
        size = min(left, BLOCK_BYTES)
        end = _end_of_block(held, at, size)
        yield codec.decompress(write_varint(size) + held[at:end], size, asbytes=True)
        at = end
        left -= size


def _end_of_block(held: bytearray, at: int, size: int) -> int:
    """Where the elements end that begin at ``at`` and make ``size`` bytes."""
    made = 0
    try:
        while made < size:
            tag = held[at]
            if tag < LONG_LITERAL or tag & 3:
                at += TAKEN[tag]
                made += MADE[tag]
            else:
                width = (tag >> 2) - 59
                length = int.from_bytes(held[at + 1 : at + 1 + width], "little") + 1
                at += 1 + width + length
                made += length
    except IndexError:
        raise pa.ArrowInvalid("a page ends early") from None
    if made > size:
        raise pa.ArrowInvalid("the blocks of its Snappy data are not those of known encoders")
    return at
