"""An input that is not what was hashed is noticed, however it was changed."""

import gzip
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s2sent.service.bulk.input import unchanged
from s2sent.service.bulk.input.files import RowReader, scan
from s2sent.service.bulk.job import InputError, Options
from tests.support.bulk_files import make_texts
from tests.support.fake_embedder import FakeEmbedder, embed_files

FORMATS = ("txt", "csv", "tsv", "jsonl", "parquet", "txt.gz", "parquet.gz")
CHANGED = "has changed since the run began. Begin again with --overwrite"


def write(path: Path, texts: list[str]) -> Path:
    """Texts in the format of the file's name."""
    kind = path.name.removesuffix(".gz").partition(".")[2]
    if kind == "parquet":
        sink = pa.BufferOutputStream()
        table = pa.table({"text": texts})
        pq.write_table(table, sink, row_group_size=50, use_dictionary=False, compression="none")
        content = sink.getvalue().to_pybytes()
    else:
        rows = [f'"{text}"' if kind == "jsonl" else text for text in texts]
        header = [] if kind in ("txt", "jsonl") else ["text"]
        content = "".join(f"{row}\n" for row in [*header, *rows]).encode()
    path.write_bytes(gzip.compress(content, 0, mtime=0) if path.name.endswith(".gz") else content)
    return path


def in_place(path: Path, content: bytes) -> None:
    """Other bytes of the same number in the same file, whose times are put back."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def by_rename(path: Path, content: bytes) -> None:
    """Another file of the same size and time under the name."""
    before, new = path.stat(), path.with_name("new")
    new.write_bytes(content)
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)


def longer(path: Path, content: bytes) -> None:
    """More bytes at the end."""
    with path.open("ab") as file:
        file.write(content)


def shorter(path: Path, content: bytes) -> None:
    """Half of the bytes."""
    os.truncate(path, len(content) // 2)


WAYS = (in_place, by_rename, longer, shorter)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that files of a few kilobytes have some."""
    monkeypatch.setattr(unchanged, "BLOCK_BYTES", 1_000)


@pytest.mark.parametrize("change", WAYS)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_changes_before_it_is_read_is_noticed(
    tmp_path: Path, kind: str, change: Callable[[Path, bytes], None]
) -> None:
    texts = make_texts(300, Random(0))
    path = write(tmp_path / f"a.{kind}", texts)
    other = write(tmp_path / f"b.{kind}", [text.upper() for text in texts]).read_bytes()
    (file,) = scan([str(path)], Options())
    change(path, other)
    with (
        pytest.raises(InputError, match=rf"a\.{kind} {CHANGED}"),
        RowReader(file, Options()) as rows,
    ):
        rows.take(300)


# Of a gzipped Parquet file all bytes are read, into a copy, before the first row.
@pytest.mark.parametrize(
    ("kind", "change"), [pair for pair in product(FORMATS, WAYS) if pair != (FORMATS[-1], in_place)]
)
def test_a_file_that_changes_while_it_is_read_is_not_committed(
    tmp_path: Path, kind: str, change: Callable[[Path, bytes], None]
) -> None:
    texts = make_texts(4_000, Random(0))
    path = write(tmp_path / f"a.{kind}", texts)
    other = write(tmp_path / f"b.{kind}", [text.upper() for text in texts]).read_bytes()

    class Changing(FakeEmbedder):
        def start(self, texts: list[str]) -> object:  # type: ignore[override]  # what it returns
            if not self.texts:
                change(path, other)
            return super().start(texts)

    with pytest.raises(InputError, match=rf"a\.{kind} {CHANGED}"):
        embed_files([path], tmp_path / "out", embedder=Changing())
    assert not list((tmp_path / "out").rglob("0*.json"))
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_a_file_that_changes_after_its_hash_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.txt", ["a", "b"])
    hashed = unchanged.Content.of

    def hashed_and_changed(source: Path) -> unchanged.Content:
        content = hashed(source)
        in_place(path, b"c\nd\n")
        return content

    monkeypatch.setattr(unchanged.Content, "of", hashed_and_changed)
    with pytest.raises(InputError, match=CHANGED):
        scan([str(path)], Options())


def test_a_file_that_grows_by_whole_blocks_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x" * 999 + "\n")
    content = unchanged.Content.of(path)
    longer(path, b"y" * 1_000)
    with unchanged.UnchangedFile(path, content, "a.txt") as file:
        assert len(file.read(1_000)) == 1_000
        with pytest.raises(InputError, match=CHANGED):
            file.read(1_000)
