"""What is committed stays, resuming gives the same bytes, and another run is refused."""

import fcntl
import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s2sent.service.bulk.job import BulkError, InputError, Options, OutputError, Shard
from s2sent.service.bulk.output.folder import OutputFolder
from tests.support.bulk_files import contents, make_texts, write_texts
from tests.support.fake_embedder import DIM, FAKE_MODEL, FakeEmbedder, embed_files, vector_of
from tests.support.small_disk import mounted, remount

FORMATS = ("parquet", "npy", "jsonl")
SMALL = Options(rows_per_shard=7)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """40 texts: six parts of seven rows, the last one of five."""
    return write_texts(tmp_path / "texts.txt", 40, Random(0))


@pytest.mark.parametrize("format_", FORMATS)
def test_any_division_into_shards_gives_the_same_bytes(
    tmp_path: Path, texts: Path, format_: str
) -> None:
    options = replace(SMALL, format=format_)  # type: ignore[arg-type]  # one of the formats
    embed_files([texts], tmp_path / "one", options)
    for index in (2, 0, 1):
        output = embed_files(
            [texts], tmp_path / "three", options, shard=Shard(index, 3), resume=True
        )
        assert output.is_complete == (index == 1)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


def test_several_files_are_one_input(tmp_path: Path) -> None:
    lines = make_texts(40, Random(0))
    files = []
    for at, (start, stop) in enumerate([(0, 5), (5, 5), (5, 20), (20, 21), (21, 40)]):
        files.append(tmp_path / f"{at}.txt")
        files[-1].write_text("".join(f"{line}\n" for line in lines[start:stop]))
    embed_files(files, tmp_path / "out", replace(SMALL, format="npy"))
    for index in range(4):
        embed_files(
            files, tmp_path / "b", replace(SMALL, format="npy"), shard=Shard(index, 4), resume=True
        )
    rows = np.load(tmp_path / "out" / "embeddings.npy")
    expected = np.array([vector_of(line) for line in lines])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    np.testing.assert_array_equal(rows, np.load(tmp_path / "b" / "embeddings.npy"))


@given(
    rows=st.integers(0, 60),
    per_shard=st.integers(1, 25),
    count=st.integers(1, 4),
    lost=st.sets(st.integers(0, 60)),
)
@settings(max_examples=25)
def test_each_row_is_there_once_whatever_was_lost(
    tmp_path_factory: pytest.TempPathFactory, rows: int, per_shard: int, count: int, lost: set[int]
) -> None:
    """Records that are lost are parts that were not committed: they are made again."""
    folder = tmp_path_factory.mktemp("rows")
    lines = make_texts(rows, Random(rows))
    (folder / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    options = Options(format="jsonl", rows_per_shard=per_shard)
    for index in range(count):
        embed_files(
            [folder / "a.txt"], folder / "out", options, shard=Shard(index, count), resume=True
        )
    first = contents(folder / "out")
    for part in lost:
        (folder / "out" / "_parts" / f"{part:06}.json").unlink(missing_ok=True)
    (folder / "out" / "_SUCCESS").unlink()
    embed_files([folder / "a.txt"], folder / "out", options, resume=True)
    assert contents(folder / "out") == first
    found = [
        json.loads(line)["row"]
        for path in sorted((folder / "out").glob("part-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    assert found == list(range(rows))


def test_what_is_committed_is_not_embedded_again(tmp_path: Path, texts: Path) -> None:
    lines = texts.read_text().splitlines()
    stopping = FakeEmbedder(broken=(lines[20],))
    with pytest.raises(InputError, match=r"texts\.txt, row 21: the embedding is zero or not"):
        embed_files([texts], tmp_path / "out", SMALL, embedder=stopping)
    assert not list((tmp_path / "out").glob(".*.tmp"))
    second = FakeEmbedder()
    output = embed_files([texts], tmp_path / "out", SMALL, embedder=second, resume=True)
    assert second.texts == lines[14:]
    assert output.is_complete


def test_a_complete_run_is_left_as_it_is(tmp_path: Path, texts: Path) -> None:
    embed_files([texts], tmp_path / "out", SMALL)
    before = contents(tmp_path / "out")
    again = FakeEmbedder()
    embed_files([texts], tmp_path / "out", SMALL, embedder=again, resume=True)
    assert again.texts == []
    assert contents(tmp_path / "out") == before


def test_the_manifest_holds_model_options_input_and_every_part(tmp_path: Path, texts: Path) -> None:
    embed_files([texts], tmp_path / "out", SMALL)
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert manifest["model"] == {"name": "fake", "fingerprint": "f" * 64}
    assert manifest["options"]["rows_per_shard"] == 7
    (file,) = manifest["input"]
    assert (file["bytes"], file["rows"]) == (texts.stat().st_size, 40)
    assert [part["rows"] for part in manifest["parts"]] == [7] * 5 + [5]
    assert [part["first_row"] for part in manifest["parts"]] == list(range(0, 40, 7))
    for part in manifest["parts"]:
        assert (tmp_path / "out" / part["file"]).stat().st_size == part["bytes"]


def test_resuming_with_something_else_names_both_values(tmp_path: Path, texts: Path) -> None:
    embed_files([texts], tmp_path / "out", SMALL)
    other = write_texts(tmp_path / "other.txt", 41, Random(0))
    cases = {
        r"--dtype float32 and this run has int8": replace(SMALL, dtype="int8"),
        r"begun without --dimensions and this run has 8\.": replace(SMALL, dimensions=8),
        r"--rows-per-shard 7 and this run has 8": replace(SMALL, rows_per_shard=8),
    }
    for message, options in cases.items():
        with pytest.raises(OutputError, match=message):
            embed_files([texts], tmp_path / "out", options, resume=True)
    model = replace(FAKE_MODEL, name="new", fingerprint="e" * 64)
    with pytest.raises(OutputError, match=r"fake \(f{16}\) and this run has new \(e{16}\)"):
        embed_files([texts], tmp_path / "out", SMALL, embedder=FakeEmbedder(model), resume=True)
    with pytest.raises(OutputError, match=r"texts\.txt \(\d+ bytes, .*other\.txt \(\d+ bytes"):
        embed_files([other], tmp_path / "out", SMALL, resume=True)


def test_an_output_is_not_touched_unasked(tmp_path: Path, texts: Path) -> None:
    embed_files([texts], tmp_path / "out", SMALL)
    before = contents(tmp_path / "out")
    with pytest.raises(OutputError, match="6 of 6 parts.*--resume.*--overwrite"):
        embed_files([texts], tmp_path / "out", SMALL)
    assert contents(tmp_path / "out") == before
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("...")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"holds thesis\.tex.*Name another"):
            embed_files([texts], tmp_path / "home", SMALL, overwrite=overwrite)
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_overwriting_leaves_nothing_of_the_run_before(tmp_path: Path, texts: Path) -> None:
    embed_files([texts], tmp_path / "out", replace(SMALL, format="npy", rows_per_shard=3))
    embed_files([texts], tmp_path / "out", SMALL, overwrite=True)
    embed_files([texts], tmp_path / "fresh", SMALL)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def hold(path: Path, shard: Shard, ready: "multiprocessing.synchronize.Event", end: object) -> None:
    """Begin a run and keep it open."""
    output = OutputFolder(path, FAKE_MODEL, SMALL, [])
    output.begin(shard, resume=True, overwrite=False)
    ready.set()
    end.wait(60)  # type: ignore[attr-defined]  # an Event


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Shard(), Shard()),
        (Shard(), Shard(0, 2)),
        (Shard(0, 2), Shard()),
        (Shard(1, 2), Shard(1, 2)),
    ],
    ids=str,
)
def test_two_processes_on_one_output_are_refused(
    tmp_path: Path, first: Shard, second: Shard
) -> None:
    spawn = multiprocessing.get_context("spawn")
    ready, end = spawn.Event(), spawn.Event()
    process = spawn.Process(target=hold, args=(tmp_path / "out", first, ready, end))
    process.start()
    try:
        assert ready.wait(60)
        other = OutputFolder(tmp_path / "out", FAKE_MODEL, SMALL, [])
        with pytest.raises(OutputError, match=rf"another process \(pid {process.pid} on "):
            other.begin(second, resume=True, overwrite=False)
        other.close()
        if first.count > 1:
            other.begin(Shard(1 - first.index, 2), resume=True, overwrite=False)
            other.close()
    finally:
        end.set()
        process.join()


@pytest.mark.parametrize("another", [True, False])
def test_the_last_shard_leaves_files_that_another_may_be_writing(
    tmp_path: Path, texts: Path, another: bool
) -> None:
    out = tmp_path / "out"
    embed_files([texts], out, SMALL, shard=Shard(0, 2))
    theirs = out / ".part-000005.parquet.tmp"
    theirs.touch()
    with (out / ".lock").open("r+") as lock:
        if another:
            fcntl.flock(lock, fcntl.LOCK_SH)
        output = embed_files([texts], out, SMALL, shard=Shard(1, 2), resume=True)
    assert output.is_complete
    assert theirs.exists() == another


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    with mounted(tmp_path / "disk", megabytes=1) as folder:
        yield folder


@pytest.mark.parametrize("format_", FORMATS)
def test_a_full_disk_is_one_sentence_and_what_was_committed_stays(
    tmp_path: Path, small_disk: Path, format_: str
) -> None:
    texts = write_texts(tmp_path / "texts.txt", 24_000, Random(0))
    options = Options(rows_per_shard=2_000, format=format_)  # type: ignore[arg-type]  # a format
    with pytest.raises(OutputError, match="the disk is full.*--resume; committed parts are kept"):
        embed_files([texts], small_disk / "out", options)
    assert not list(small_disk.rglob(".*.tmp"))
    records = sorted((small_disk / "out" / "_parts").glob("*.json"))
    assert bool(records) == (format_ != "npy")  # there the room is set aside first
    remount(small_disk, "size=64m")
    embed_files([texts], small_disk / "out", options, resume=True)
    embed_files([texts], tmp_path / "roomy", options)
    assert contents(small_disk / "out") == contents(tmp_path / "roomy")


def test_a_committed_part_that_was_damaged_is_noticed(tmp_path: Path, texts: Path) -> None:
    embed_files([texts], tmp_path / "out", SMALL, shard=Shard(0, 2))
    (tmp_path / "out" / "part-000002.parquet").write_bytes(b"cut")
    with pytest.raises(OutputError, match=r"part-000002\.parquet has 3 bytes and had \d+"):
        embed_files([texts], tmp_path / "out", SMALL, resume=True)


def test_options_that_the_model_lacks_are_refused() -> None:
    cases = {
        f"--dimensions is 17; fake has {DIM}. Ask for 1 to {DIM} of": Options(dimensions=17),
        f"--dimensions is 0; fake has {DIM}. Ask for 1 to {DIM} of": Options(dimensions=0),
        "--depth is 0; fake can stop at 2, 4": Options(depth=0),
        "packs eight components into a byte and there are 12": Options(
            dimensions=12, dtype="binary"
        ),
        "--depth is 3; fake can stop at 2, 4": Options(depth=3),
        "--prompt-name is 'doc'; fake has query. Write \"\" for no": Options(prompt_name="doc"),
    }
    for message, options in cases.items():
        with pytest.raises(BulkError, match=message):
            options.check(FAKE_MODEL)
    Options(prompt_name="").check(FAKE_MODEL)
    for text in ("1", "2/2", "-1/2", "a/b", "1/0"):
        with pytest.raises(BulkError, match="write i/n"):
            Shard.parse(text)
