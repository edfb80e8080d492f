"""Ids and kept columns of Parquet are told as text, or refused by their column."""

import datetime
import decimal
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s2sent.service.bulk.input.files import RowReader, scan
from s2sent.service.bulk.job import InputError, InputRow, Options

ID = Options(id_column="id")
KEPT = Options(keep=("id",))


def read(path: Path, options: Options) -> list[InputRow]:
    """All rows of a file."""
    (file,) = scan([str(path)], options)
    with RowReader(file, options) as rows:
        return rows.take(file.rows)


def whole(numbers: list[int | None], kind: pa.DataType) -> pa.Array:
    """Whole numbers as they stand in a column of times."""
    width = pa.int32() if kind in (pa.date32(), pa.time32("s"), pa.time32("ms")) else pa.int64()
    return pa.array(numbers, width).view(kind)


DAY = 86_400
VALUES: dict[str, tuple[pa.Array, list[str | None]]] = {
    "nanoseconds": (
        whole([1, None], pa.timestamp("ns")),
        ["1970-01-01 00:00:00.000000001", None],
    ),
    "the year 20000": (whole([568971820800000], pa.timestamp("ms")), ["20000-01-01 00:00:00.000"]),
    "a zone": (whole([0], pa.timestamp("us", tz="UTC")), ["1970-01-01 00:00:00.000000Z"]),
    "a time": (
        whole([1, DAY * 10**9 - 1], pa.time64("ns")),
        ["00:00:00.000000001", "23:59:59.999999999"],
    ),
    "a duration": (whole([2**63 - 1, -1], pa.duration("ns")), ["9223372036854775807", "-1"]),
    "a date": (whole([2_932_896], pa.date32()), ["9999-12-31"]),
    "64 bits": (
        pa.array([2**64 - 1, 2**53 + 1], pa.uint64()),
        ["18446744073709551615", "9007199254740993"],
    ),
    "truths": (pa.array([True, False, None]), ["true", "false", None]),
    "decimals": (pa.array([decimal.Decimal("1.50")]), ["1.50"]),
    "words by number": (pa.array(["a", "b", None, "a"]).dictionary_encode(), ["a", "b", None, "a"]),
    "long words": (pa.array(["a"], pa.large_string()), ["a"]),
    "nothing": (pa.nulls(2), [None, None]),
}


@pytest.mark.parametrize("options", [ID, KEPT], ids=["id", "kept"])
@pytest.mark.parametrize("name", VALUES)
def test_values_are_told_as_arrow_tells_them(tmp_path: Path, name: str, options: Options) -> None:
    values, expected = VALUES[name]
    table = pa.table({"text": ["a"] * len(values), "id": values})
    pq.write_table(table, tmp_path / "a.parquet")
    rows = read(tmp_path / "a.parquet", options)
    assert [row.error for row in rows] == [None] * len(values)
    assert [row.id if options is ID else row.kept[0] for row in rows] == expected


@pytest.mark.parametrize(
    "kind",
    [pa.date32(), pa.timestamp("ns"), pa.timestamp("ms"), pa.timestamp("us"), pa.time64("us")],
    ids=str,
)
def test_times_beyond_any_calendar_are_still_different_ids(
    tmp_path: Path, kind: pa.DataType
) -> None:
    most = 2**31 - 1 if kind == pa.date32() else 2**62
    table = pa.table({"text": ["a", "b"], "id": whole([most, most - 1_000], kind)})
    pq.write_table(table, tmp_path / "a.parquet")
    first, second = read(tmp_path / "a.parquet", ID)
    assert first.id
    assert first.id != second.id


def test_a_late_date_of_96_bits_is_that_date(tmp_path: Path) -> None:
    table = pa.table({"text": ["a"], "id": [datetime.datetime(9999, 12, 31, 1, 2, 3, 4)]})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    (row,) = read(tmp_path / "a.parquet", ID)
    assert row.id == "9999-12-31 01:02:03.000004"


def test_a_uuid_is_told_as_one(tmp_path: Path) -> None:
    key = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
    ids = pa.array([key.bytes, None], pa.binary(16)).cast(pa.uuid())
    pq.write_table(pa.table({"text": ["a", "b"], "id": ids}), tmp_path / "a.parquet")
    assert [row.id for row in read(tmp_path / "a.parquet", ID)] == [str(key), None]


FLOATS = {
    "double": pa.array([float(2**53), float(2**53 + 1)]),
    "float": pa.array([1.0, None], pa.float32()),
    "halffloat": pa.array([1.0], pa.float16()),
}


@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_no_ids_and_can_be_kept(tmp_path: Path, name: str) -> None:
    table = pa.table({"text": ["a"] * len(FLOATS[name]), "id": FLOATS[name]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf"'id' holds .*{name}.*, which may be rounded\. Name"):
        read(tmp_path / "a.parquet", ID)
    kept = read(tmp_path / "a.parquet", KEPT)[0].kept[0]
    assert kept is not None
    assert float(kept) == FLOATS[name][0].as_py()


UNTOLD: dict[str, Any] = {
    "lists": [[1, 2]],
    "structs": [{"a": 1}],
    "bytes": [b"x"],
    "maps": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
    "a zone that is not there": whole([0], pa.timestamp("us", tz="Nowhere/There")),
}


@pytest.mark.parametrize("options", [ID, KEPT], ids=["id", "kept"])
@pytest.mark.parametrize("name", UNTOLD)
def test_what_cannot_be_told_is_refused_by_its_column(
    tmp_path: Path, name: str, options: Options
) -> None:
    pq.write_table(pa.table({"text": ["a"], "id": UNTOLD[name]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"'id' holds .*, which .*\. Name another one by --"):
        scan([str(tmp_path / "a.parquet")], options)


@pytest.mark.parametrize("texts", [[["a"]], [{"a": "string"}]], ids=["lists", "structs"])
def test_strings_within_something_are_no_texts(tmp_path: Path, texts: list[Any]) -> None:
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="'text' holds .* and not strings. Name another one"):
        scan([str(tmp_path / "a.parquet")], Options())


def test_texts_of_a_dictionary_and_of_bad_bytes_in_it_are_read(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"caf\xe9", None, b"good"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": raw.dictionary_encode()}), tmp_path / "a.parquet")
    rows = read(tmp_path / "a.parquet", Options())
    assert [row.text for row in rows] == ["good", "caf\udce9", "", "good"]
    assert rows[1].error == "the text is not UTF-8: byte 0xe9 at 3"


def test_one_column_can_be_text_id_and_kept(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "a.parquet")
    rows = read(tmp_path / "a.parquet", Options(id_column="text", keep=("text",)))
    assert [(row.text, row.id, row.kept) for row in rows] == [
        ("a", "a", ("a",)),
        ("b", "b", ("b",)),
    ]
