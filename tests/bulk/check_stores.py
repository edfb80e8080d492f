"""The snippets of docs/bulk.md, run over an output of `s2sent embed` with the real libraries."""

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support.bulk_files import write_texts

PAGE = Path(__file__).parents[2] / "docs" / "bulk.md"
SNIPPET = re.compile(r"<!-- snippet: ([\w-]+) -->\n```python\n(.*?)```", re.DOTALL)
SNIPPETS = dict(SNIPPET.findall(PAGE.read_text(encoding="utf-8")))
ROWS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts.txt and their embeddings in three parts."""
    folder = tmp_path_factory.mktemp("corpus")
    write_texts(folder / "texts.txt", ROWS, random.Random(0))
    command = ["embed", "texts.txt", "-o", "embeddings", "--rows-per-shard", "120"]
    subprocess.run(
        [sys.executable, "-m", "s2sent.service", *command], cwd=folder, check=True, timeout=120
    )
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a snippet in the folder; returns its variables."""
    monkeypatch.chdir(folder)

    def run(name: str) -> dict[str, Any]:
        variables: dict[str, Any] = {}
        exec(compile(SNIPPETS[name], f"{PAGE.name}:{name}", "exec"), variables)  # noqa: S102  # our own page
        return variables

    return run


@pytest.fixture
def expected(folder: Path) -> list[int]:
    """The five rows nearest to row 0, found without a store."""
    table = pq.read_table(folder / "embeddings", columns=["row", "embedding"]).sort_by("row")
    vectors = np.array(table["embedding"].to_pylist())
    return [int(row) for row in np.argsort(-(vectors @ vectors[0]))[:5]]


def test_every_snippet_of_the_page_is_run_here() -> None:
    assert set(SNIPPETS) == {"duckdb", "polars", "lancedb", "qdrant"}


def test_duckdb(run: Any, expected: list[int]) -> None:
    assert [row for row, _ in run("duckdb")["nearest"]] == expected


def test_polars(run: Any, expected: list[int], folder: Path) -> None:
    found = run("polars")
    assert found["vectors"].shape == (ROWS, 384)
    assert [int(row) for row in np.argsort(-found["cosines"])[:5]] == expected
    assert found["table"]["text"].to_list() == (folder / "texts.txt").read_text().splitlines()


def test_lancedb(run: Any, expected: list[int]) -> None:
    assert [each["row"] for each in run("lancedb")["nearest"]] == expected


def test_qdrant(run: Any, expected: list[int]) -> None:
    assert [each.id for each in run("qdrant")["nearest"]] == expected
