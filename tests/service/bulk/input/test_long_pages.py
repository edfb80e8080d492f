"""Strings of pages that are too large for memory are those that pyarrow reads."""

import errno
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s2sent.service.bulk.input import long_strings, parquet
from s2sent.service.bulk.input.files import RowReader, scan
from s2sent.service.bulk.input.snappy_blocks import decompress_blocks
from s2sent.service.bulk.job import InputError, InputRow, Options
from tests.support.bulk_files import make_texts

OPTIONS = Options(id_column="id", keep=("text", "number"))
WAYS: dict[str, dict[str, Any]] = {
    "as pyarrow writes": {},
    "version 2": {"data_page_version": "2.0"},
    "version 2, plain": {"data_page_version": "2.0", "use_dictionary": False},
    "a dictionary that grows too long": {"dictionary_pagesize_limit": 20_000},
    "an index of pages": {"write_page_index": True},
}


def read(path: Path) -> list[InputRow]:
    """All rows of a file."""
    (file,) = scan([str(path)], OPTIONS)
    with RowReader(file, OPTIONS) as rows:
        return rows.take(file.rows)


@cache
def make_table(kind: pa.DataType, *, nullable: bool) -> pa.Table:
    """3,000 rows, of which some are equal or empty, and some not there."""
    random = Random(0)
    texts: list[str | None] = [*make_texts(2_000, random), *["same"] * 500, *["äöü\0€" * 90] * 500]
    random.shuffle(texts)
    if nullable:
        texts[::7] = [None] * len(texts[::7])
        texts[100:200] = [None] * 100
    columns = [pa.array(texts, kind), pa.array(map(str, range(3_000))), pa.array(range(3_000))]
    fields = [
        pa.field("text", kind, nullable),
        pa.field("id", pa.string()),
        pa.field("number", pa.int64()),
    ]
    return pa.table(columns, pa.schema(fields))


@pytest.fixture
def decoded_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every page counts as long. Has the columns that pyarrow does not decode: texts and ids."""
    columns: list[str] = []
    read_strings = long_strings.read_strings

    def noted(file: Any, name: str, chunk: Any, column: Any) -> Iterator[bytes | None]:
        columns.append(column.path)
        return read_strings(file, name, chunk, column)

    monkeypatch.setattr(long_strings, "LONG_PAGE_BYTES", 100)
    monkeypatch.setattr(parquet, "read_strings", noted)
    yield columns
    assert {"text", "id"} <= set(columns)


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "brotli"])
@pytest.mark.parametrize("way", WAYS)
def test_rows_are_those_that_pyarrow_reads(
    tmp_path: Path, decoded_here: list[str], way: str, codec: str
) -> None:
    for nullable in (True, False):
        table = make_table(pa.string(), nullable=nullable)
        path = tmp_path / f"{nullable}.parquet"
        pq.write_table(table, path, row_group_size=1_600, compression=codec, **WAYS[way])
        rows = read(path)
        assert [row.kept[0] for row in rows] == table["text"].to_pylist()
        assert [row.id for row in rows] == table["id"].to_pylist()
        assert [row.kept[1] for row in rows] == table["id"].to_pylist()
        assert [row.text or None for row in rows] == table["text"].to_pylist()


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_arrow_types_of_strings_are_read_alike(
    tmp_path: Path, decoded_here: list[str], kind: pa.DataType
) -> None:
    texts = make_table(pa.string(), nullable=True)["text"]
    table = pa.table({"text": texts.cast(kind), "id": texts, "number": texts})
    pq.write_table(table, tmp_path / "a.parquet")
    assert [row.id for row in read(tmp_path / "a.parquet")] == texts.to_pylist()


def test_a_column_of_one_value_is_read(tmp_path: Path, decoded_here: list[str]) -> None:
    """The numbers of its dictionary have no bits."""
    columns = {"text": ["same" * 50] * 2_000, "id": ["one" * 50, None] * 1_000}
    pq.write_table(pa.table({**columns, "number": range(2_000)}), tmp_path / "a.parquet")
    rows = read(tmp_path / "a.parquet")
    assert [row.text for row in rows] == columns["text"]
    assert [row.id for row in rows] == columns["id"]


def test_a_byte_that_is_not_utf_8_is_an_error_of_its_row(
    tmp_path: Path, decoded_here: list[str]
) -> None:
    raw = pa.array([b"good" * 50, b"b\xffd"], pa.binary()).view(pa.string())
    table = pa.table({"text": raw, "id": ["1" * 101, "2"], "number": [1, 2]})
    pq.write_table(table, tmp_path / "a.parquet")
    good, bad = read(tmp_path / "a.parquet")
    assert (good.text, good.error) == ("good" * 50, None)
    assert "not UTF-8" in str(bad.error)


@pytest.mark.parametrize("way", ["as pyarrow writes", "version 2, plain"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_damage_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, codec: str
) -> None:
    monkeypatch.setattr(long_strings, "LONG_PAGE_BYTES", 100)
    path, random = tmp_path / "a.parquet", Random(0)
    pq.write_table(make_table(pa.string(), nullable=True), path, compression=codec, **WAYS[way])
    whole = path.read_bytes()
    chunks = pq.read_metadata(path).row_group(0)
    pages = sum(chunks.column(at).total_compressed_size for at in range(2))
    sentences = []
    for _ in range(60):
        damaged = bytearray(whole)
        start = random.choice([4, random.randrange(4, pages)])
        damaged[start : start + 20] = random.randbytes(20)
        path.write_bytes(damaged)
        try:
            read(path)
        except InputError as error:
            sentences.append(str(error))
    assert sentences
    assert all(each.endswith("Copy or write the file again.") for each in sentences)


def test_a_full_disk_under_a_dictionary_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(tempfile.SpooledTemporaryFile[bytes]):
        def write(self, _data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(long_strings, "LONG_PAGE_BYTES", 100)
    pq.write_table(make_table(pa.string(), nullable=True), tmp_path / "a.parquet")
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", Full)
    with pytest.raises(InputError, match=r"a\.parquet is copied to a temporary file.*TMPDIR"):
        read(tmp_path / "a.parquet")


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1_000_000])
def test_snappy_data_are_decompressed_whatever_the_pieces(size: int) -> None:
    random = Random(size)
    words = " ".join(make_texts(size // 40 + 1, random)).encode()[: size // 2]
    data = (words + random.randbytes(size))[:size]
    compressed = pa.compress(data, "snappy", asbytes=True)
    for length in (997, 100_000, 2_000_000):
        starts = range(0, len(compressed), length)
        pieces = decompress_blocks(compressed[at : at + length] for at in starts)
        assert b"".join(pieces) == data


def test_snappy_data_of_other_blocks_are_refused() -> None:
    literals = b"".join(
        bytes([61 << 2]) + (40_000 - 1).to_bytes(2, "little") + b"x" * 40_000 for _ in range(2)
    )
    data = bytes([128, 241, 4]) + literals  # of 80,000 bytes
    assert pa.decompress(data, 80_000, "snappy", asbytes=True) == b"x" * 80_000
    with pytest.raises(pa.ArrowInvalid, match="not those of known encoders"):
        list(decompress_blocks(iter([data])))
