"""Columns that are not there, or there twice, are refused, and ids are kept to the last digit."""

from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s2sent.service.bulk.input.files import RowReader, scan
from s2sent.service.bulk.job import InputError, InputRow, Options


def read(path: Path, options: Options) -> list[InputRow]:
    """All rows of a file."""
    (file,) = scan([str(path)], options)
    with RowReader(file, options) as rows:
        return rows.take(file.rows)


@pytest.mark.parametrize(
    ("options", "flag"),
    [(Options(text_column="nope"), "--text-column"), (Options(id_column="nope"), "--id-column")],
)
def test_lines_of_text_have_no_columns(tmp_path: Path, options: Options, flag: str) -> None:
    (tmp_path / "a.txt").write_text("text\none\n")
    message = rf"a\.txt is lines of text and has no column 'nope'. Leave out {flag}, or give"
    with pytest.raises(InputError, match=message):
        scan([str(tmp_path / "a.txt")], options)


@pytest.mark.parametrize("columns", [{"text_column": "b"}, {"id_column": "b"}], ids=str)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
def test_a_column_that_is_there_twice_is_refused(
    tmp_path: Path, name: str, columns: dict[str, str]
) -> None:
    path, names = tmp_path / name, ["b", "text", "b"]
    if name == "a.parquet":
        pq.write_table(pa.table([pa.array([value]) for value in names], names=names), path)
    else:
        path.write_text((("\t" if name == "a.tsv" else ",").join(names) + "\n") * 2)
    with pytest.raises(InputError, match=r"has 2 columns 'b'\. Rename all but one"):
        read(path, Options(**columns))  # type: ignore[arg-type]  # names of columns
    assert [row.text for row in read(path, Options())] == ["text"]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_of_thousands_of_columns_ten_are_named(tmp_path: Path, name: str) -> None:
    columns = [f"c{number}" for number in range(5_000)]
    path = tmp_path / name
    if name == "a.csv":
        path.write_text(",".join(columns) + "\n")
        with pytest.raises(InputError) as caught:
            read(path, Options())
        message = str(caught.value)
    else:
        path.write_bytes(orjson.dumps(dict.fromkeys(columns, 1)))
        message = str(read(path, Options())[0].error)
    assert ", c8, c9 and 4990 more" in message
    assert "c10" not in message


@pytest.mark.parametrize(
    "written",
    [
        "12345678901234567890123",
        "-9223372036854775809",
        "1.5",
        "1e3",
        '{"a":[18446744073709551616]}',
    ],
)
def test_an_id_that_reading_may_round_is_an_error_of_its_row(tmp_path: Path, written: str) -> None:
    path, batch = tmp_path / "a.jsonl", tmp_path / "batch.jsonl"
    path.write_text(f'{{"id": {written}, "text": "a"}}\n')
    batch.write_text(f'{{"custom_id": {written}, "body": {{"input": "a"}}}}\n')
    for file in (path, batch):
        (row,) = read(file, Options(id_column="id"))
        assert row.id is None
        assert row.error is not None
        assert "a number that may be rounded; write it as a string" in row.error


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ('"1.50"', "1.50"),
        ("18446744073709551615", "18446744073709551615"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("true", "true"),
        ('{"$oid": "a"}', '{"$oid":"a"}'),
        ("null", None),
    ],
)
def test_other_ids_are_kept_as_text(tmp_path: Path, written: str, kept: str | None) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"id": {written}, "text": "a"}}\n')
    (row,) = read(tmp_path / "a.jsonl", Options(id_column="id"))
    assert (row.text, row.id, row.error) == ("a", kept, None)


def test_an_id_that_is_nested_too_deeply_is_an_error_of_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"id": {"[" * 400}{"]" * 400}, "text": "a"}}\n')
    (row,) = read(tmp_path / "a.jsonl", Options(id_column="id"))
    assert row.error == "the id is nested too deeply; write it as a string"


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(1)], ids=str)
def test_a_column_of_bytes_has_no_ids(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": pa.array([b"x"], kind), "text": ["a"]}), path)
    with pytest.raises(InputError, match=r"'id' holds \w*binary.*, which is no text\. Name"):
        read(path, Options(id_column="id"))
