"""Every input format gives the same rows, and what is wrong with one is named with its place."""

import csv
import gzip
import io
import json
import os
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s2sent.service.bulk.input.files import RowReader, find_inputs, scan, with_part_rows
from s2sent.service.bulk.job import InputError, InputRow, Job, Options
from tests.support.bulk_files import make_texts

TEXTS = ["plain", 'with "quotes", a comma and\ta tab', "naïve café 東京", " spaces ", "x" * 5_000]


def read(path: Path, **options: str) -> list[InputRow]:
    """All rows of a file."""
    settings = Options(**options)  # type: ignore[arg-type]  # the options of columns are text
    (file,) = scan([str(path)], settings)
    with RowReader(file, settings) as rows:
        found = rows.take(1_000_000)
    assert len(found) == file.rows
    return found


def write(path: Path, texts: list[str]) -> Path:
    """Texts in the format of the file's name, with an id column where it has columns."""
    name = path.name.removesuffix(".gz")
    rows = [{"id": f"n{at}", "text": text} for at, text in enumerate(texts)]
    if name.endswith(".txt"):
        content = "".join(f"{text}\n" for text in texts).encode()
    elif name.endswith(".jsonl"):
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    elif name.endswith(".parquet"):
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=3)
        content = sink.getvalue()
    else:
        text = io.StringIO(newline="")
        if name.endswith(".csv"):
            writer = csv.writer(text)
            writer.writerow(["id", "text"])
            writer.writerows([row["id"], row["text"]] for row in rows)
        else:
            text.write("id\ttext\n" + "".join(f"{r['id']}\t{r['text']}\n" for r in rows))
        content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


NAMES = [
    f"a.{kind}{gz}" for kind in ("txt", "csv", "tsv", "jsonl", "parquet") for gz in ("", ".gz")
]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_texts_in_order(tmp_path: Path, name: str) -> None:
    texts = [t.replace("\t", " ") for t in TEXTS] if "tsv" in name else TEXTS
    path = write(tmp_path / name, texts)
    assert [row.text for row in read(path)] == texts
    assert all(row.error is None for row in read(path))


@pytest.mark.parametrize("name", [name for name in NAMES if "txt" not in name])
def test_ids_are_kept_where_a_column_is_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, ["a", "b"])
    assert [row.id for row in read(path)] == [None, None]
    assert [row.id for row in read(path, id_column="id")] == ["n0", "n1"]


@pytest.mark.parametrize("name", NAMES)
def test_rows_can_be_passed_over(tmp_path: Path, name: str) -> None:
    texts = make_texts(50, Random(0))
    (file,) = scan([str(write(tmp_path / name, texts))], Options())
    assert file.rows == 50
    for first in (0, 1, 2, 3, 7, 29, 50):
        with RowReader(file, Options()) as rows:
            assert rows.skip(first) == first
            assert [row.text for row in rows.take(4)] == texts[first : first + 4]
            assert rows.skip(1_000) == max(0, 50 - first - 4)


def test_lines_of_openai_batch_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    head = {"method": "POST", "url": "/v1/embeddings"}
    lines = [
        {"custom_id": "a", **head, "body": {"model": "m", "input": "one"}},
        {"custom_id": "b", **head, "body": {"model": "m", "input": ["two"]}},
        {"custom_id": "c", **head, "body": {"model": "m", "input": ["three", "four"]}},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = read(path)
    assert [(row.id, row.text) for row in rows] == [("a", "one"), ("b", "two"), ("c", "")]
    assert rows[2].error == "body.input has 2 texts; a line may have one"


def test_lines_of_plain_strings_windows_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    strings = tmp_path / "a.jsonl"
    strings.write_text('"one"\n"two"\n')
    assert [row.text for row in read(strings)] == ["one", "two"]
    windows = tmp_path / "a.txt"
    windows.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree")
    assert [row.text for row in read(windows)] == ["one", "two", "three"]


def test_a_text_may_have_every_separator_that_is_no_line_feed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\x85two\u2028three\x0b\n", encoding="utf-8")
    assert [row.text for row in read(path)] == ["one\x85two\u2028three\x0b"]


BAD_ROWS = {
    "a.txt": (b"good\n\ngood\n", "the text is empty"),
    "b.txt": (b"good\nna\xefve\n", "the text is not UTF-8: byte 0xef at 2"),
    "a.csv": (b"id,text\n1,good\n2\n", "it has 1 fields and the header 2"),
    "b.csv": (b"id,text\n1,good\n2,\xff\n", "the text is not UTF-8: byte 0xff at 0"),
    "a.jsonl": (b'{"text":"good"}\n{"text":7}\n', "text is a number and not a string"),
    "b.jsonl": (b'{"text":"good"}\n{"text":null}\n', "text is null and not a string"),
    "c.jsonl": (b'{"text":"good"}\n{"txt":"a"}\n', "it has no 'text', only txt"),
    "d.jsonl": (b'{"text":"good"}\n{"text":"\xff"}\n', "the line is not UTF-8: byte 0xff at 9"),
    "e.jsonl": (b'{"text":"good"}\n{"text":\n', "the line is not JSON"),
    "f.jsonl": (b'{"text":"good"}\n[1]\n', "the line is a list and not an object"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_named_and_the_others_are_read(tmp_path: Path, name: str) -> None:
    content, error = BAD_ROWS[name]
    path = tmp_path / name
    path.write_bytes(content)
    rows = read(path)
    assert rows[0] == InputRow("good", None, f"{path}, row 1")
    assert rows[1].error is not None
    assert rows[1].error.startswith(error)
    assert rows[1].place == f"{path}, row 2"


def test_an_id_that_is_not_utf_8_is_an_error_of_its_row(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_bytes(b"id,text\n1,good\ncaf\xe9,good\n")
    parquet = tmp_path / "a.parquet"
    ids = pa.array([b"1", b"caf\xe9"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": ids, "text": ["good", None]}), parquet)
    for path in (table, parquet):
        good, bad = read(path, id_column="id")
        assert good == InputRow("good", "1", f"{path}, row 1", None)
        assert bad == InputRow("", None, f"{path}, row 2", "the id is not UTF-8")


def test_missing_values_and_bad_bytes_in_parquet_are_errors_of_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    raw = pa.array([b"good", None, b"\xff", b"good"], pa.binary())
    pq.write_table(pa.table({"text": raw.view(pa.string())}), path)
    errors = [row.error for row in read(path)]
    assert errors[0] is errors[3] is None
    assert errors[1] == "text is null and not a string"
    assert errors[2] == "the text is not UTF-8: byte 0xff at 0"


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    for name in ("a.csv", "a.tsv", "a.parquet"):
        path = write(tmp_path / name, ["a"])
        with pytest.raises(InputError, match=r"has no column 'body'; it has id, text\. Name one"):
            read(path, text_column="body")
        with pytest.raises(InputError, match="has no column 'key'"):
            read(path, id_column="key")


def test_a_column_of_numbers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [1, 2]}), path)
    with pytest.raises(InputError, match="'text' holds int64 and not strings"):
        read(path)


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.99])
def test_a_file_that_is_cut_is_refused_before_anything_is_embedded(
    tmp_path: Path, kept: float
) -> None:
    for name in ("a.parquet", "a.txt.gz", "a.parquet.gz"):
        path = write(tmp_path / name, make_texts(500, Random(0)))
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * kept)])
        with pytest.raises(InputError, match=rf"{name} is .*(cut|damaged).*again\."):
            scan([str(path)], Options())


def test_damaged_pages_of_parquet_are_found_when_they_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", make_texts(500, Random(0)))
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.parquet, after row 0,? (is|cannot)"):
        read(path)


def test_what_breaks_while_it_is_read_is_named_with_the_rows_before_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", make_texts(500, Random(0)))
    pq.write_table(pq.read_table(path), path, row_group_size=100)
    column = pq.ParquetFile(path).metadata.row_group(3).column(1)
    content = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + 60] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.parquet, after row 300,? (is|cannot)"):
        read(path)


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", ["a", "b"])
    (file,) = scan([str(path)], Options())
    write(path, ["a", "b", "c"])
    with (
        pytest.raises(InputError, match="has changed since the run began"),
        RowReader(file, Options()),
    ):
        pass


def test_globs_are_sorted_and_nothing_found_is_an_error(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.csv"):
        (tmp_path / name).write_text("x\n")
    found = find_inputs([f"{tmp_path}/*.txt", f"{tmp_path}/c.csv"])
    assert [Path(name).name for name in found] == ["a.txt", "b.txt", "c.csv"]
    with pytest.raises(InputError, match="is not there"):
        find_inputs([f"{tmp_path}/*.jsonl"])
    with pytest.raises(InputError, match="is a folder"):
        find_inputs([str(tmp_path)])


@pytest.mark.parametrize(
    "again",
    ["four.txt", "fo*.txt", "./four.txt", "sub/../four.txt", "link.txt", "hard.txt", "h*.txt"],
)
def test_a_file_that_is_named_twice_is_there_once(
    tmp_path: Path, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "four.txt").write_text("x\n")
    (tmp_path / "other.txt").write_text("x\n")
    (tmp_path / "link.txt").symlink_to("four.txt")
    (tmp_path / "hard.txt").hardlink_to(tmp_path / "four.txt")
    told: list[str] = []
    found = find_inputs(["four.txt", again, "other.txt"], tell=told.append)
    assert found == ["four.txt", "other.txt"]
    name = {"fo*.txt": "four.txt", "h*.txt": "hard.txt"}.get(again, again)
    assert told == [f"{name} is named more than once, and is embedded once."]


@pytest.mark.parametrize(
    ("length", "rows", "expected"),
    [(20, 100, 10_000), (249, 5_000, 5_000), (10_000, 50, 1_000), (0, 0, 1_000)],
)
def test_parts_have_fewer_rows_where_rows_are_long(
    tmp_path: Path, length: int, rows: int, expected: int
) -> None:
    (tmp_path / "a.txt").write_text(("x" * length + "\n") * rows)
    job = Job((str(tmp_path / "a.txt"),), tmp_path, tmp_path, Options(rows_per_shard=0))
    files = scan(job.inputs, job.options)
    assert with_part_rows(job, files).options.rows_per_shard == expected
    given = replace(job, options=Options(rows_per_shard=7))
    assert with_part_rows(given, files) == given


def test_what_can_be_read_once_only_is_refused_with_the_cure(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe is no regular file.* and write - in its place"):
        find_inputs([str(tmp_path / "pipe")])
    with pytest.raises(InputError, match="is not there"):
        find_inputs(["a" * 300])


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'id,text\n1,"a\nb"\n2,"a"b\n3,c\n', 4),
        (b'id,text\n1,a\n2,"b\n3,c\n4,d\n', 3),  # found at the end of the file
        (b'id,"te"xt\n1,a\n', 1),
    ],
)
def test_a_broken_record_is_named_by_the_line_on_which_it_begins(
    tmp_path: Path, content: bytes, line: int
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    message = rf"a\.csv, line {line}: the record that begins there .*Mend the file\."
    with pytest.raises(InputError, match=message):
        scan([str(tmp_path / "a.csv")], Options())


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "texts.doc"
    path.write_text("a\n")
    with pytest.raises(InputError, match="Give --input-format"):
        scan([str(path)], Options())
    assert scan([str(path)], Options(), given="txt")[0].rows == 1
