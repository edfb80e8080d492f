"""What another program has written is left alone; what a killed run has left is in nobody's way."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from s2sent.service.bulk.job import Options, OutputError
from tests.support.bulk_files import contents, write_texts
from tests.support.fake_embedder import embed_files

SMALL = Options(rows_per_shard=7)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """20 texts: three parts."""
    return write_texts(tmp_path / "texts.txt", 20, Random(0))


def make(folder: Path, *names: str) -> Path:
    """A folder with small files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("theirs\n")
    return folder


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}], ids=str)
@pytest.mark.parametrize(
    "names",
    [
        ("part-00000-xyz.parquet", "_SUCCESS"),
        ("_SUCCESS",),
        ("part-000000.parquet",),
        ("embeddings.npy",),
        ("_parts/000000.json",),
        ("_parts",),
    ],
    ids=str,
)
def test_an_output_of_another_program_is_left_alone(
    tmp_path: Path, texts: Path, names: tuple[str, ...], how: dict[str, Any]
) -> None:
    """Spark names its files part-* and _SUCCESS, too."""
    folder = make(tmp_path / "spark", *names)
    with pytest.raises(OutputError, match=r"holds \w+.* and no _manifest\.json .*Name another"):
        embed_files([texts], folder, SMALL, **how)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} <= {*names}
    assert contents(folder) == dict.fromkeys(names, b"theirs\n")


@pytest.mark.parametrize("name", ["_parts/precious.bin", ".notes.tmp", "_parts/.x.tmp"])
def test_a_strange_file_beside_what_a_run_leaves_keeps_all(
    tmp_path: Path, texts: Path, name: str
) -> None:
    folder = make(tmp_path / "out", name, "_parts/000000.json")
    with pytest.raises(OutputError, match="no _manifest"):
        embed_files([texts], folder, SMALL, overwrite=True)
    assert name in contents(folder)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("place", ["out/a.txt", "out/below/a.txt", "link.txt"])
def test_inputs_in_the_output_folder_are_refused(
    tmp_path: Path, place: str, overwrite: bool
) -> None:
    out = make(tmp_path / "out", "_manifest.json", "a.txt", "below/a.txt")
    (tmp_path / "link.txt").symlink_to(out / "a.txt")
    with pytest.raises(OutputError, match=rf"{place} is an input and lies in the output folder"):
        embed_files([tmp_path / place], out, SMALL, resume=not overwrite, overwrite=overwrite)
    assert set(contents(out)) == {"_manifest.json", "a.txt", "below/a.txt"}


def test_overwriting_deletes_what_a_run_writes_and_nothing_else(
    tmp_path: Path, texts: Path
) -> None:
    out = tmp_path / "out"
    embed_files([texts], out, SMALL)
    ours = set(contents(out))
    theirs = {"part-00000-xyz.parquet", "part-000000.parquet.bak", "rows-1.parquet", "part-1.csv"}
    make(out, *theirs)
    embed_files([texts], out, Options(rows_per_shard=20), overwrite=True)
    kept = {name.replace("000002", "000000").replace("000001", "000000") for name in ours}
    assert set(contents(out)) == kept | theirs


def test_what_a_run_that_was_killed_at_once_has_left_is_not_in_the_way(
    tmp_path: Path, texts: Path
) -> None:
    names = (".lock", ".lock-0-of-2", "_manifest.json.host-1.begin", "._manifest.json.host-1.tmp")
    out = make(tmp_path / "out", *names)
    (out / "_parts").mkdir()
    embed_files([texts], out, SMALL)
    embed_files([texts], tmp_path / "fresh", SMALL)
    assert contents(out) == contents(tmp_path / "fresh")


@pytest.mark.parametrize("calls", range(6))
def test_overwriting_that_was_cut_can_be_done_again(
    tmp_path: Path, texts: Path, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed_files([texts], tmp_path / "out", SMALL)
    left, unlink = [calls], Path.unlink

    def cut(path: Path, **options: bool) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", cut)
    with pytest.raises(KeyboardInterrupt):
        embed_files([texts], tmp_path / "out", SMALL, overwrite=True)
    monkeypatch.undo()
    embed_files([texts], tmp_path / "out", SMALL, overwrite=True)
    embed_files([texts], tmp_path / "fresh", SMALL)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
