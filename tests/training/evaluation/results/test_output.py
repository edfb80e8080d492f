"""Whether a file can be written is known before the work, and nothing is left by asking."""

import re
from pathlib import Path

import pytest

from s2sent.training.errors import ConfigError
from s2sent.training.evaluation.results.output import require_writable


def test_asking_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    require_writable(tmp_path / "new" / "folders" / "file.json")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file.json").write_text("kept")
    require_writable(tmp_path / "file.json")
    assert (tmp_path / "file.json").read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["file.json"]


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "new" / "a.json"
    for path in (tmp_path, below.parent, below, Path("/proc/none/a.json")):
        with pytest.raises(
            ConfigError, match=rf"{re.escape(str(path))} cannot be written \(.+\): "
        ):
            require_writable(path)
