"""--keep carries columns into every format of output, as text."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from s2sent.model.artifact.reader import Artifact
from s2sent.service.__main__ import app
from s2sent.service.bulk.input.files import RowReader, scan
from s2sent.service.bulk.job import InputError, Options, OutputError
from tests.support.fake_embedder import embed_files

ROWS: list[dict[str, Any]] = [
    {"text": "one", "label": 'é, "quoted"', "year": 1999},
    {"text": "", "label": "empty", "year": 2000},
    {"text": "three", "label": "", "year": 2001},
]
KEEP = Options(keep=("year", "label"), rows_per_shard=2)


def write(path: Path) -> Path:
    """ROWS in the format of the file's name."""
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(ROWS), path)
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        case ".csv":
            pl.DataFrame(ROWS).write_csv(path)
        case _:
            lines = ["\t".join(ROWS[0]), *("\t".join(map(str, row.values())) for row in ROWS)]
            path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("format_", ["parquet", "jsonl", "npy"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_kept_columns_stand_after_the_others(tmp_path: Path, kind: str, format_: str) -> None:
    path = write(tmp_path / f"a.{kind}")
    options = Options(keep=KEEP.keep, rows_per_shard=2, format=format_)  # type: ignore[arg-type]  # a format
    embed_files([path], tmp_path / "out", options, null_errors=True)
    if format_ == "jsonl":
        table = pl.read_ndjson(sorted((tmp_path / "out").glob("part-*")))
    else:
        table = pl.read_parquet(tmp_path / "out" / "*-0*.parquet")
    assert table.columns[-3:] == ["error", "year", "label"]
    assert table["year"].to_list() == ["1999", "2000", "2001"]
    assert table["label"].to_list() == [row["label"] for row in ROWS]
    assert table["error"].to_list() == [None, "the text is empty", None]


def test_values_of_json_are_kept_as_json(tmp_path: Path) -> None:
    lines = [
        '{"text": "a", "label": {"b": [1, 2.5, null, true]}}',
        '{"text": "a", "label": null}',
        '{"text": "a"}',
        '"a"',
        '{"text": 7, "label": "kept"}',
        '{"label": "kept"}',
        "no JSON",
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    options = Options(keep=("label",))
    (file,) = scan([str(tmp_path / "a.jsonl")], options)
    with RowReader(file, options) as reader:
        rows = reader.take(10)
    kept = ['{"b":[1,2.5,null,true]}', None, None, None, "kept", "kept", None]
    assert [row.kept[0] for row in rows] == kept
    assert [bool(row.error) for row in rows] == [False] * 4 + [True] * 3


def test_a_kept_value_that_is_not_utf_8_is_an_error_of_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,label\none,caf\xe9\ntwo,good\n")
    options = Options(keep=("label",))
    output = embed_files([tmp_path / "a.csv"], tmp_path / "out", options, null_errors=True)
    table = pq.read_table(output.path / "part-000000.parquet")
    assert table["error"].to_pylist() == ["label, which --keep names, is not UTF-8", None]
    assert table["label"].to_pylist() == [None, "good"]


def test_a_kept_value_that_is_nested_too_deeply_is_an_error_of_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"label": {"[" * 400}{"]" * 400}, "text": "a"}}\n')
    options = Options(keep=("label",))
    output = embed_files([tmp_path / "a.jsonl"], tmp_path / "out", options, null_errors=True)
    table = pq.read_table(output.path / "part-000000.parquet")
    assert "nested too deeply" in table["error"][0].as_py()


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
def test_a_column_that_is_not_there_cannot_be_kept(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"has no column 'nope'; it has .* Name one by --keep\."):
        scan([str(write(tmp_path / name))], Options(keep=("nope",)))


def test_lines_of_text_have_nothing_to_keep(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(InputError, match="has no column 'label'. Leave out --keep, or give"):
        scan([str(tmp_path / "a.txt")], Options(keep=("label",)))


def test_a_run_goes_on_only_with_the_columns_it_was_begun_with(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv")
    embed_files([path], tmp_path / "out", KEEP, null_errors=True)
    embed_files([path], tmp_path / "out", KEEP, null_errors=True, resume=True)
    for options in (Options(rows_per_shard=2), Options(keep=("label",), rows_per_shard=2)):
        with pytest.raises(OutputError, match=r"begun with --keep \['year', 'label'\] and"):
            embed_files([path], tmp_path / "out", options, null_errors=True, resume=True)


def test_the_flag_is_given_once_for_each_column(tmp_path: Path, tiny_artifact: Artifact) -> None:
    command = ["embed", str(write(tmp_path / "a.csv")), "-o", str(tmp_path / "out")]
    command += ["--artifact", str(tiny_artifact.path), "--on-error", "null"]
    keep = ["--keep", "label", "--keep", "year", "--keep", "label", "--keep", "text"]
    result = CliRunner().invoke(app, [*command, *keep])
    assert result.exit_code == 0, result.output
    table = pq.read_table(tmp_path / "out" / "part-000000.parquet")
    assert table.column_names[-4:] == ["error", "label", "year", "text"]
    assert table["text"].to_pylist() == ["one", "", "three"]


@pytest.mark.parametrize("name", ["row", "id", "embedding", "tokens", "truncated", "error"])
def test_the_names_of_the_output_are_taken(tmp_path: Path, name: str) -> None:
    command = ["embed", str(write(tmp_path / "a.csv")), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*command, "--keep", name])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"--keep {name} is the name of a column that every output has.")
