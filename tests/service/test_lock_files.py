"""A lock file is a file of its own, and opening it leaves everything as it is."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from s2sent.service.bulk.job import OutputError, Shard
from s2sent.service.bulk.output.locks import LOCK, FolderLocks
from s2sent.service.lock_files import open_lock_file


def test_a_lock_file_is_made_and_opened_again_with_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    os.close(open_lock_file(path, 0o600))
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("pid 1")
    os.close(open_lock_file(path))
    assert path.read_text() == "pid 1"


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("shard", [Shard(0, 1), Shard(1, 2)])
def test_the_target_of_a_link_is_neither_emptied_nor_written_to(
    tmp_path: Path, link: Callable[[Path, Path], None], shard: Shard
) -> None:
    target, folder = tmp_path / "target", tmp_path / "folder"
    target.write_text("mine")
    folder.mkdir()
    name = LOCK if shard.count == 1 else f"{LOCK}-{shard.index}-of-{shard.count}"
    link(target, folder / name)
    with pytest.raises(OSError, match="is a link or no file; remove it"):
        open_lock_file(folder / name)
    locks = FolderLocks(folder)
    with pytest.raises(OutputError, match=f"{name} is a link or no file; remove it"):
        locks.take(shard)
    locks.release()
    assert target.read_text() == "mine"


def test_a_link_to_nothing_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "new")
    with pytest.raises(OSError, match="is a link"):
        open_lock_file(tmp_path / "lock")
    assert not (tmp_path / "new").exists()


def test_a_pipe_and_a_folder_are_no_lock_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no file"):
        open_lock_file(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError) as error:
        open_lock_file(tmp_path)
    assert error.value.errno == errno.EISDIR
