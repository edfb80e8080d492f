"""A file in memory has what was copied, whoever changes the original, and leaves nothing open."""

import os
import sys
from pathlib import Path

import pytest

from s2sent.model.artifact import sealed_file as memory_file
from s2sent.model.artifact.sealed_file import OPEN_FILES, MemoryFile

CONTENT = bytes(range(256)) * 40_000

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory files are Linux'")


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "original"
    path.write_bytes(CONTENT)
    return path


def copy(path: Path, limit: int = 1 << 30) -> MemoryFile:
    with path.open("rb") as file:
        return MemoryFile(file, limit)


@linux
def test_the_copy_stays_as_it_is(original: Path) -> None:
    """Every reader begins at the beginning."""
    held = copy(original)
    original.write_bytes(b"another")
    assert isinstance(held.source, str)
    assert held.content == CONTENT
    assert [Path(held.source).read_bytes() for _ in range(2)] == [CONTENT, CONTENT]
    held.close()


@linux
def test_not_even_its_owner_can_write_to_the_copy_or_cut_it(original: Path) -> None:
    """It is mapped: a page that was cut off would end the process when it is read."""
    held = copy(original)
    with pytest.raises(PermissionError), Path(str(held.source)).open("r+b", buffering=0) as file:
        file.write(b"another")
    with pytest.raises(PermissionError):
        os.truncate(str(held.source), 1)
    assert held.content == CONTENT
    held.close()


@pytest.mark.parametrize("limit", [0, 1, 4097, len(CONTENT), len(CONTENT) + 1])
def test_no_more_is_copied_than_was_asked_for(original: Path, limit: int) -> None:
    held = copy(original, limit)
    assert held.content == CONTENT[:limit]
    held.close()


def test_an_empty_file_is_empty(original: Path) -> None:
    original.write_bytes(b"")
    assert not copy(original).content


@linux
def test_nothing_stays_open_once_it_is_closed_or_forgotten(original: Path) -> None:
    before = len(os.listdir(OPEN_FILES))
    closed, forgotten = copy(original), copy(original)
    assert len(os.listdir(OPEN_FILES)) > before
    closed.close()
    del forgotten
    assert len(os.listdir(OPEN_FILES)) == before


def test_where_there_are_no_such_files_the_source_is_bytes(
    original: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory_file, "OPEN_FILES", tmp_path / "nowhere")
    held = copy(original)
    assert held.source == held.content.tobytes() == CONTENT
    held.close()
    assert not held.content


@linux
@pytest.mark.parametrize("call", ["memfd_create", "sendfile"])
def test_what_the_system_refuses_is_read_as_bytes(
    original: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A kernel may be hardened, and not every file system can send a file."""

    def refuse(*_: object) -> int:
        raise PermissionError(1, "not here")

    before = len(os.listdir(OPEN_FILES))
    monkeypatch.setattr(os, call, refuse)
    held = copy(original)
    assert held.source == CONTENT
    assert len(os.listdir(OPEN_FILES)) == before
