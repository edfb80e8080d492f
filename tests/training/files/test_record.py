"""Provenance: a record names the code that ran, and tells when it is not the commit's."""

import subprocess
from pathlib import Path

import pytest

from s2sent.training.errors import DataError
from s2sent.training.files.record import (
    ROOT,
    commit,
    provenance,
    read_record,
    source_sha256,
    write_json,
    write_record,
)


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for folder in ("model", "training", "docs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "code.py").write_text(f"# {folder}\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_clean_tree_has_its_commit_and_is_not_dirty(repository: Path) -> None:
    found = provenance(repository)
    assert len(found["commit"]) == 40
    assert found["dirty"] is False
    assert found["source_sha256"] == source_sha256(repository)


@pytest.mark.parametrize("file", ["model/code.py", "training/new/file.py"])
def test_a_changed_or_new_source_file_is_dirty_and_hashes_otherwise(
    repository: Path, file: str
) -> None:
    before = provenance(repository)
    (repository / file).parent.mkdir(exist_ok=True)
    (repository / file).write_text("changed = True\n")
    after = provenance(repository)
    assert after["dirty"] is True
    assert after["commit"] == before["commit"]
    assert after["source_sha256"] != before["source_sha256"]


def test_what_decides_no_result_makes_nothing_dirty(repository: Path) -> None:
    before = provenance(repository)
    (repository / "docs" / "code.py").write_text("changed = True\n")
    assert provenance(repository) == before


def test_a_renamed_file_hashes_otherwise(repository: Path) -> None:
    before = source_sha256(repository)
    (repository / "model" / "code.py").rename(repository / "model" / "other.py")
    assert source_sha256(repository) != before


def test_outside_a_work_tree_the_hash_is_all_there_is(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "code.py").write_text("x = 1\n")
    found = provenance(tmp_path)
    assert (found["commit"], found["dirty"]) == (None, None)
    assert found["source_sha256"] != source_sha256(tmp_path / "model")


def test_the_default_is_this_tree() -> None:
    assert source_sha256() == source_sha256(Path(__file__).parents[3])
    assert provenance()["commit"] == commit(ROOT)


def test_json_is_written_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "new" / "file.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "new" / "file.json", {"a": object()})
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.json"]
    assert "1" in (tmp_path / "new" / "file.json").read_text()


@pytest.mark.parametrize("content", ['{"seed": 1, "dev"', "[]", "\xff"])
def test_a_damaged_record_is_named(tmp_path: Path, content: str) -> None:
    assert read_record(tmp_path) == {}
    (tmp_path / "training.json").write_text(content, encoding="latin-1")
    with pytest.raises(DataError, match=r"training\.json .*: restore it, or delete it"):
        read_record(tmp_path)


def test_a_run_that_stands_in_a_record_twice_has_its_ancestry_once(tmp_path: Path) -> None:
    first = {"seed": 1, "began_from": {"seed": 0}}
    second = {"seed": 2, "began_from": first, "teachers": [first, {"seed": 3}]}
    write_record(tmp_path, {"seed": 4, "teachers": [first, second]})
    assert read_record(tmp_path)["teachers"] == [
        first,
        {"seed": 2, "began_from": {"seed": 1}, "teachers": [{"seed": 1}, {"seed": 3}]},
    ]
