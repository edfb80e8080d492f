"""An output that is damaged, or cannot be written, is one sentence with the file and the cure."""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import orjson
import pytest

from s2sent.service.bulk.job import Options, OutputError
from tests.support.bulk_files import contents, write_texts
from tests.support.fake_embedder import FakeEmbedder, embed_files
from tests.support.small_disk import mounted, remount

SMALL = Options(rows_per_shard=7)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """20 texts: three parts."""
    return write_texts(tmp_path / "texts.txt", 20, Random(0))


@pytest.mark.parametrize(
    "change",
    [b"", b"[]", b"null", b"\xff", {"model": None}, {"input": None}, {"options": []}, {"input": 1}],
    ids=str,
)
def test_a_manifest_of_another_shape_is_named(
    tmp_path: Path, texts: Path, change: bytes | dict[str, object]
) -> None:
    embed_files([texts], tmp_path / "out", SMALL)
    path = tmp_path / "out" / "_manifest.json"
    content = orjson.loads(path.read_bytes())
    path.write_bytes(change if isinstance(change, bytes) else orjson.dumps(content | change))
    with pytest.raises(OutputError, match=r"_manifest\.json cannot be read as .*--overwrite\.$"):
        embed_files([texts], tmp_path / "out", SMALL, resume=True)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b'{"part": "0"}', None], ids=str)
def test_a_record_of_another_shape_is_named_and_the_cure_helps(
    tmp_path: Path, texts: Path, content: bytes | None
) -> None:
    out = tmp_path / "out"
    embed_files([texts], out, SMALL)
    before = contents(out)
    record = out / "_parts" / "000001.json"
    whole = orjson.loads(record.read_bytes()) | {"file": None}
    record.write_bytes(orjson.dumps(whole) if content is None else content)
    for name in ("_SUCCESS", "nothing more"):
        (out / name).unlink(missing_ok=True)
        with pytest.raises(OutputError, match=r"000001\.json is no record .*Delete it and run"):
            embed_files([texts], out, SMALL, resume=True)
    record.unlink()
    embed_files([texts], out, SMALL, resume=True)
    assert contents(out) == before


@pytest.mark.parametrize("format_", ["parquet", "jsonl", "npy"])
def test_a_complete_run_that_has_lost_a_part_is_not_complete(
    tmp_path: Path, texts: Path, format_: str
) -> None:
    out, options = tmp_path / "out", Options(rows_per_shard=7, format=format_)  # type: ignore[arg-type]  # a format
    embed_files([texts], out, options)
    before = contents(out)
    (part,) = out.glob("*-000001.*")
    part.unlink()
    with pytest.raises(
        OutputError, match=rf"{part.name} is missing and had \d+ bytes .*Delete .*000001\.json and"
    ):
        embed_files([texts], out, options, resume=True)
    (out / "_parts" / "000001.json").unlink()
    again = FakeEmbedder()
    assert embed_files([texts], out, options, embedder=again, resume=True).is_complete
    assert len(again.texts) == 7
    assert contents(out) == before


@pytest.mark.parametrize("complete", [True, False])
def test_parts_of_a_big_file_that_is_lost_are_not_taken_for_done(
    tmp_path: Path, texts: Path, complete: bool
) -> None:
    out, options = tmp_path / "out", Options(rows_per_shard=7, format="npy")
    embed_files([texts], out, options)
    (out / "embeddings.npy").unlink()
    if not complete:
        (out / "_SUCCESS").unlink()
        (out / "_parts" / "000002.json").unlink()
    with pytest.raises(OutputError, match=r"embeddings\.npy is not there, and [23] parts.*again"):
        embed_files([texts], out, options, resume=True)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system on which a complete run is, that takes no more writes."""
    with mounted(tmp_path / "disk", megabytes=4) as folder:
        embed_files([write_texts(tmp_path / "texts.txt", 20, Random(0))], folder / "out", SMALL)
        remount(folder, "ro")
        yield folder / "out"


@pytest.mark.parametrize("name", ["out", "new"])
def test_a_folder_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, read_only: Path, name: str
) -> None:
    with pytest.raises(OutputError, match="cannot be written: Read-only file system.*--resume"):
        embed_files([tmp_path / "texts.txt"], read_only.with_name(name), SMALL, resume=True)


def test_an_output_that_is_a_file_is_a_sentence_and_stays(tmp_path: Path, texts: Path) -> None:
    (tmp_path / "out").write_text("mine\n")
    with pytest.raises(OutputError, match=r"--output .*out is no folder\. Name another one\.$"):
        embed_files([texts], tmp_path / "out", SMALL, overwrite=True)
    assert (tmp_path / "out").read_text() == "mine\n"


def test_a_lock_that_is_a_folder_is_a_sentence(tmp_path: Path, texts: Path) -> None:
    (tmp_path / "out" / ".lock").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"\.lock cannot be written: Is a directory"):
        embed_files([texts], tmp_path / "out", SMALL)


def test_a_name_that_is_not_utf_8_is_escaped_in_the_manifest(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"))
    path.write_text("one\n")
    embed_files([path], tmp_path / "out", SMALL)
    embed_files([path], tmp_path / "out", SMALL, resume=True)
    manifest = orjson.loads((tmp_path / "out" / "_manifest.json").read_bytes())
    assert manifest["input"][0]["name"] == f"{tmp_path}/caf\\xe9.txt"


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (None, "", "begun without --prompt-name and this run has ''"),
        ("", None, "begun with --prompt-name '' and this run has none"),
    ],
)
def test_no_prompt_and_the_default_prompt_are_two_runs(
    tmp_path: Path, texts: Path, before: str | None, now: str | None, message: str
) -> None:
    embed_files([texts], tmp_path / "out", Options(prompt_name=before))
    with pytest.raises(OutputError, match=message):
        embed_files([texts], tmp_path / "out", Options(prompt_name=now), resume=True)
