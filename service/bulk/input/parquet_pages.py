"""The pages of a column of a Parquet file, and the bytes of one in pieces of bounded size.

Their headers are structs of parquet.thrift in Thrift's compact protocol:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa

from s2sent.service.bulk.input.snappy_blocks import decompress_blocks
from s2sent.service.bulk.input.varints import read_varint

PIECE_BYTES = 1 << 20
CODECS = {
    "UNCOMPRESSED": None,
    "SNAPPY": "snappy",
    "ZSTD": "zstd",
    "GZIP": "gzip",
    "BROTLI": "brotli",
}
DATA, DICTIONARY, DATA_V2 = 0, 2, 3  # kinds of pages
PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY = 0, 2, 8  # encodings


class PageBytes:
    """The bytes of a page, read forward; raises ArrowInvalid where they end early."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = b""
        self._at = 0

    def read(self, count: int) -> bytes:
        """So many bytes."""
        parts = []
        while count > 0:
            if self._at == len(self._piece):
                self._piece, self._at = next(self._pieces, b""), 0
            part = self._piece[self._at : self._at + count]
            if not part:
                raise pa.ArrowInvalid("a page ends early")
            self._at += len(part)
            count -= len(part)
            parts.append(part)
        return b"".join(parts)

    def number(self) -> int:
        """A number of four bytes."""
        return int.from_bytes(self.read(4), "little")


@dataclass(frozen=True)
class Page:
    """A page whose ``size`` bytes lie at ``start`` and are ``whole_size`` when decompressed.

    level_bytes: of a page of version 2, those of its levels, which are never compressed.
    """

    kind: int
    start: int
    size: int
    whole_size: int
    values: int
    encoding: int
    level_bytes: int
    codec: str | None

    def levels(self, file: IO[bytes]) -> bytes:
        """What stands before the compressed bytes of a page of version 2."""
        file.seek(self.start)
        return file.read(self.level_bytes)

    def read(self, file: IO[bytes]) -> PageBytes:
        """The rest of it, decompressed; others may read the file meanwhile."""
        pieces = _pieces(file, self.start + self.level_bytes, self.start + self.size)
        if self.codec == "snappy":
            pieces = decompress_blocks(pieces)
        elif self.codec:
            pieces = _decompress(pieces, self.codec)
        return PageBytes(pieces)


def read_pages(file: IO[bytes], chunk: Any) -> Iterator[Page]:
    """The pages of a column of a row group, which pyarrow's metadata describe, by their headers."""
    codec, left = CODECS[chunk.compression], chunk.num_values
    position = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < position:
        position = chunk.dictionary_page_offset
    while left > 0:
        file.seek(position)
        page = _page(_read_struct(file), file.tell(), codec)
        left -= page.values * (page.kind in (DATA, DATA_V2))
        position = page.start + page.size
        yield page


def _page(header: dict[int, Any], start: int, codec: str | None) -> Page:
    try:
        kind, whole_size, size = header[1], header[2], header[3]
        described = header.get({DATA: 5, DICTIONARY: 7, DATA_V2: 8}.get(kind, 0), {1: 0, 2: PLAIN})
        level_bytes, encoding = 0, described[2]
        if kind == DATA_V2:
            encoding, level_bytes = described[4], described[5] + described[6]
            codec = codec if described.get(7, True) else None
        values = described[1]
    except KeyError:
        raise pa.ArrowInvalid("a page has no header") from None
    if size < level_bytes or values < 0:
        raise pa.ArrowInvalid("a page has a header of impossible sizes")
    return Page(kind, start, size, whole_size, values, encoding, level_bytes, codec)


def _read_struct(file: IO[bytes]) -> dict[int, Any]:
    """The fields of a struct by their numbers; only whole numbers, truths and structs of them."""
    fields: dict[int, Any] = {}
    number = 0
    while kind := _byte(file):
        number = number + (kind >> 4) if kind >> 4 else _signed(file)
        fields[number] = _read_value(file, kind & 15)
    return fields


def _read_value(file: IO[bytes], kind: int) -> Any:
    match kind:
        case 1 | 2:
            return kind == 1
        case 3:
            return _byte(file)
        case 4 | 5 | 6:
            return _signed(file)
        case 8:  # a least or greatest value
            file.seek(read_varint(lambda: _byte(file)), 1)
            return None
        case 12:
            return _read_struct(file)
        case _:
            raise pa.ArrowInvalid("a page has no header")


def _signed(file: IO[bytes]) -> int:
    number = read_varint(lambda: _byte(file))
    return number >> 1 ^ -(number & 1)


def _byte(file: IO[bytes]) -> int:
    if read := file.read(1):
        return read[0]
    raise pa.ArrowInvalid("a page ends early")


def _pieces(file: IO[bytes], start: int, end: int) -> Iterator[bytes]:
    while start < end:
        file.seek(start)
        piece = file.read(min(PIECE_BYTES, end - start))
        if not piece:
            raise pa.ArrowInvalid("a page ends early")
        yield piece
        start += len(piece)


class _Source:
    """Pieces as the file that pyarrow decompresses."""

    closed = False

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = b""

    def read(self, count: int) -> bytes:
        """The next bytes, none at the end."""
        self._piece = self._piece or next(self._pieces, b"")
        part, self._piece = self._piece[:count], self._piece[count:]
        return part

    def close(self) -> None:
        """Nothing to close."""


def _decompress(pieces: Iterator[bytes], codec: str) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.PythonFile(_Source(pieces), "r"), codec) as stream:
        while piece := stream.read(PIECE_BYTES):
            yield piece
