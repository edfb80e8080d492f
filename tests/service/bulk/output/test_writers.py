"""What is written can be read by others, in every format and type."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import duckdb
import numpy as np
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from s2sent.service.bulk.job import Dtype, Options
from s2sent.service.bulk.output.writers import to_stored
from tests.support.fake_embedder import DIM, FakeEmbedder, embed_files, vector_of

LINES = ["first", "second text", "", "bro ken", "one two three four five six seven eight nine"]
ERRORS = [None, None, "the text is empty", "the embedding is zero or not finite", None]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Five rows, of which the third and the fourth have no embedding."""
    path = tmp_path / "texts.jsonl"
    rows = [{"key": at * 10, "text": line} for at, line in enumerate(LINES)]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def run(texts: Path, output: Path, **options: Any) -> Path:
    """Embed the texts in parts of two rows."""
    settings = replace(Options(rows_per_shard=2, id_column="key"), **options)
    embedder = FakeEmbedder(broken=("bro ken",))
    embed_files([texts], output, settings, embedder=embedder, null_errors=True)
    return output


def expected(dtype: Dtype, dimensions: int | None = None) -> NDArray[Any]:
    """What is stored of LINES."""
    vectors = np.array([vector_of(line) for line in LINES])[:, :dimensions].astype(np.float64)
    unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    stored: NDArray[Any] = np.packbits(unit > 0, axis=1)
    if dtype == "int8":
        steps = np.rint(unit / np.float32(8 / (127 * np.sqrt(unit.shape[1]))))
        stored = steps.clip(-127, 127).astype(np.int8)
    elif dtype == "binary":
        stored = (stored.astype(np.int16) - 128).astype(np.int8)
    elif dtype != "ubinary":
        stored = unit.astype(dtype)
    return stored


def assert_rows(rows: list[dict[str, Any]], dtype: Dtype = "float32") -> None:
    """Check every column of rows as Python objects."""
    assert [row["row"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["id"] for row in rows] == ["0", "10", "20", "30", "40"]
    assert [row["error"] for row in rows] == ERRORS
    assert [row["tokens"] for row in rows] == [1, 2, 0, 2, 9]
    assert [row["truncated"] for row in rows] == [False] * 4 + [True]
    for row, vector in zip(rows, expected(dtype), strict=True):
        if row["error"]:
            assert row["embedding"] is None
        else:
            np.testing.assert_array_equal(np.asarray(row["embedding"], vector.dtype), vector)


@pytest.mark.parametrize("dtype", DTYPES)
def test_polars_reads_it(texts: Path, tmp_path: Path, dtype: Dtype) -> None:
    folder = run(texts, tmp_path / "out", dtype=dtype)
    table = pl.read_parquet(folder / "part-*.parquet")
    assert_rows(table.to_dicts(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_duckdb_reads_it(texts: Path, tmp_path: Path, dtype: Dtype) -> None:
    folder = run(texts, tmp_path / "out", dtype=dtype)
    found = duckdb.sql(f"SELECT * FROM '{folder}/part-*.parquet' ORDER BY row")  # noqa: S608  # our own path
    assert found is not None
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
    assert_rows(rows, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pandas_reads_it(texts: Path, tmp_path: Path, dtype: Dtype) -> None:
    folder = run(texts, tmp_path / "out", dtype=dtype)
    parts = sorted(folder.glob("part-*.parquet"))
    frame = pd.concat([pd.read_parquet(part) for part in parts])
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert_rows(rows, dtype)


def test_the_column_is_a_fixed_size_list_and_the_metadata_names_the_model(
    texts: Path, tmp_path: Path
) -> None:
    folder = run(texts, tmp_path / "out", dimensions=8, prompt_name="query", depth=2)
    schema = pq.read_schema(folder / "part-000000.parquet")
    assert schema.field("embedding").type == pa.list_(pa.float32(), 8)
    assert schema.names == ["row", "id", "embedding", "tokens", "truncated", "error"]
    assert schema.metadata[b"s2sent.fingerprint"] == b"f" * 64
    assert schema.metadata[b"s2sent.dimensions"] == b"8"
    assert schema.metadata[b"s2sent.prompt_name"] == b"query"
    assert schema.metadata[b"s2sent.depth"] == b"2"
    assert schema.metadata[b"s2sent.scale"] == b""


@pytest.mark.parametrize(("name", "prompt"), [(None, None), ("", b""), ("query", None)])
def test_no_prompt_is_told_from_none_that_was_named(
    texts: Path, tmp_path: Path, name: str | None, prompt: bytes | None
) -> None:
    metadata = pq.read_schema(
        run(texts, tmp_path / "o", prompt_name=name) / "part-000000.parquet"
    ).metadata
    assert metadata[b"s2sent.prompt_name"] == (name or "").encode()
    assert metadata.get(b"s2sent.prompt") == prompt


def test_the_scale_of_integers_is_in_the_metadata(texts: Path, tmp_path: Path) -> None:
    folder = run(texts, tmp_path / "out", dtype="int8")
    table = pq.read_table(folder / "part-000000.parquet")
    scale = float(table.schema.metadata[b"s2sent.scale"])
    integers = np.array(table["embedding"][0].as_py())
    unit = vector_of(LINES[0]) / np.linalg.norm(vector_of(LINES[0]))
    np.testing.assert_allclose(integers * scale, unit, atol=0.501 * scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_json_lines_hold_the_same(texts: Path, tmp_path: Path, dtype: Dtype) -> None:
    folder = run(texts, tmp_path / "out", format="jsonl", dtype=dtype)
    lines = b"".join(path.read_bytes() for path in sorted(folder.glob("part-*.jsonl")))
    assert_rows([orjson.loads(line) for line in lines.splitlines()], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_npy_file_holds_all_rows_and_parquet_the_rest(
    texts: Path, tmp_path: Path, dtype: Dtype
) -> None:
    folder = run(texts, tmp_path / "out", format="npy", dtype=dtype)
    rows = np.load(folder / "embeddings.npy", mmap_mode="r")
    wanted = expected(dtype)
    wanted[2:4] = np.nan if rows.dtype.kind == "f" else 0
    assert rows.dtype == wanted.dtype
    np.testing.assert_array_equal(rows, wanted)
    rest = pl.read_parquet(folder / "rows-*.parquet")
    assert rest.columns == ["row", "id", "tokens", "truncated", "error"]
    assert rest["error"].to_list() == ERRORS


@pytest.mark.parametrize("format_", ["parquet", "npy", "jsonl"])
def test_no_rows_are_an_empty_output(tmp_path: Path, format_: str) -> None:
    (tmp_path / "a.txt").write_text("")
    output = embed_files([tmp_path / "a.txt"], tmp_path / "out", Options(format=format_))  # type: ignore[arg-type]  # a format
    assert output.is_complete
    assert output.parts == 0


def test_vectors_without_a_length_are_not_usable() -> None:
    vectors = np.ones((5, DIM), np.float32)
    vectors[1], vectors[2, 3], vectors[3, 0] = 0, np.nan, np.inf
    vectors[4] = 3e38  # the squares of which float32 cannot hold
    stored, usable = to_stored(vectors, Options())
    assert usable.tolist() == [True, False, False, False, True]
    np.testing.assert_allclose(stored[4], stored[0])
    assert np.isnan(stored[1:4]).all()
