"""Strings of a Parquet column of which a page is too large to be held, one after another.

pyarrow decodes whole pages, and its writer looks at the size of one every 1,024 rows, so that a
thousand books are one page. https://parquet.apache.org/docs/file-format/data-pages/encodings/
"""

import tempfile
from array import array
from collections.abc import Iterator
from itertools import repeat
from typing import IO, Any

import numpy as np
import pyarrow as pa

from s2sent.service.bulk.input.parquet_pages import (
    CODECS,
    DATA_V2,
    DICTIONARY,
    PLAIN,
    PLAIN_DICTIONARY,
    RLE_DICTIONARY,
    Page,
    PageBytes,
    read_pages,
)
from s2sent.service.bulk.input.standard_input import making_room
from s2sent.service.bulk.input.varints import read_varint

LONG_PAGE_BYTES = 1 << 25
KNOWN = {"PLAIN", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "RLE", "BIT_PACKED"}
GROUPS = 1_024  # of eight packed numbers, that are unpacked together


def has_long_page(file: IO[bytes], chunk: Any, column: Any) -> bool:
    """Whether the strings of a row group have a page above LONG_PAGE_BYTES that is read here.

    ``chunk`` and ``column`` are pyarrow's description of them and of their column.
    """
    return (
        chunk.total_uncompressed_size > LONG_PAGE_BYTES
        and column.physical_type == "BYTE_ARRAY"
        and column.max_repetition_level == 0
        and column.max_definition_level <= 1
        and chunk.compression in CODECS
        and KNOWN.issuperset(chunk.encodings)
        and any(page.whole_size > LONG_PAGE_BYTES for page in read_pages(file, chunk))
    )


def read_strings(file: IO[bytes], name: str, chunk: Any, column: Any) -> Iterator[bytes | None]:
    """The strings of a column of a row group in UTF-8; others may read the file meanwhile.

    A long dictionary is kept in a temporary file: raises InputError where there is no room for it.
    """
    with tempfile.SpooledTemporaryFile(LONG_PAGE_BYTES) as spool:
        dictionary = _Dictionary(spool)
        for page in read_pages(file, chunk):
            if page.kind == DICTIONARY:
                with making_room(name):
                    dictionary.fill(page.read(file), page.values)
            else:
                yield from _read_page(page, file, column.max_definition_level == 1, dictionary)


class _Dictionary:
    """Values by their number, in a file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._ends = array("q", [0])

    def fill(self, values: PageBytes, count: int) -> None:
        for _ in range(count):
            self._file.write(values.read(values.number()))
            self._ends.append(self._file.tell())

    def __getitem__(self, number: int) -> bytes:
        if number >= len(self._ends) - 1:
            raise pa.ArrowInvalid("a value is not in its dictionary")
        start, end = self._ends[number : number + 2]
        self._file.seek(start)
        value: bytes = self._file.read(end - start)
        return value


def _read_page(
    page: Page, file: IO[bytes], nullable: bool, dictionary: _Dictionary
) -> Iterator[bytes | None]:
    values = page.read(file)
    there: Iterator[int] = repeat(1)
    if nullable:
        levels = page.levels(file) if page.kind == DATA_V2 else values.read(values.number())
        there = _numbers(PageBytes(iter([levels])), 1)
    numbers: Iterator[int] | None = None
    for _ in range(page.values):
        if not next(there):
            yield None
        elif page.encoding == PLAIN:
            yield values.read(values.number())
        elif page.encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY):
            numbers = numbers or _numbers(values, values.read(1)[0])
            yield dictionary[next(numbers)]
        else:
            raise pa.ArrowInvalid(f"a page has the encoding {page.encoding}")


def _numbers(source: PageBytes, width: int) -> Iterator[int]:
    """Numbers of ``width`` bits, in runs of equal ones and in packed groups of eight, for ever."""
    weights = 1 << np.arange(width)
    while width:
        header = read_varint(lambda: source.read(1)[0])
        if header & 1:
            for groups in _shares(header >> 1):
                packed = np.frombuffer(source.read(groups * width), np.uint8)
                bits = np.unpackbits(packed, bitorder="little").reshape(-1, width)
                yield from (bits @ weights).tolist()
        else:
            value = int.from_bytes(source.read((width + 7) // 8), "little")
            yield from repeat(value, header >> 1)
    yield from repeat(0)


def _shares(groups: int) -> Iterator[int]:
    while groups > 0:
        yield min(groups, GROUPS)
        groups -= GROUPS
