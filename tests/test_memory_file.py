"""Verified bytes are read as a file, and nothing is left of it."""

import gc
import os
import sys
from pathlib import Path

import pytest

from model import memory_file
from model.memory_file import OPEN_FILES, in_memory_file

CONTENT = bytes(range(256)) * 40_000

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory files are Linux'")


@linux
def test_the_file_has_the_bytes_and_ends_with_the_block() -> None:
    before = os.listdir(OPEN_FILES)
    with in_memory_file(CONTENT) as file:
        assert isinstance(file, str)
        assert Path(file).read_bytes() == CONTENT
        assert Path(file).read_bytes() == CONTENT  # every reader begins at the beginning
    assert os.listdir(OPEN_FILES) == before


@linux
def test_it_keeps_nothing_of_the_bytes() -> None:
    """A graph's bytes are as large as the model."""

    class Watched(bytes):
        pass

    content = Watched(CONTENT)
    with in_memory_file(content):
        gc.collect()
        assert [type(each) for each in gc.get_referrers(content)] in ([], [dict])


def test_where_there_are_no_such_files_the_bytes_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory_file, "OPEN_FILES", tmp_path / "nowhere")
    with in_memory_file(CONTENT) as content:
        assert content is CONTENT
