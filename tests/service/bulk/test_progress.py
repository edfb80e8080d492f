"""Progress that nobody can read is given up, and the run is not."""

import errno
import io
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import pytest
from rich.text import Text

from s2sent.service.bulk import progress
from s2sent.service.bulk.progress import BarProgress, JsonProgress, Progress
from tests.support.fake_embedder import embed_files


class Broken(io.StringIO):
    """A stream that takes nothing."""

    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def closed_pipe() -> IO[str]:
    """A pipe without a reader."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w")


STREAMS: dict[str, Callable[[], IO[str] | None]] = {
    "a pipe without a reader": closed_pipe,
    "a full disk": partial(Path("/dev/full").open, "w"),
    "no file": Broken,
    "closed": lambda: None,
}


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("kind", ["json", "bar"])
def test_a_run_ends_whoever_reads_its_progress(
    tmp_path: Path, stream: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 0.001)  # the thread writes, too
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    written = STREAMS[stream]()
    shown: Progress = (
        JsonProgress(stream=written)  # type: ignore[arg-type]  # a text stream
        if kind == "json"
        else BarProgress(console=type(BarProgress().console)(file=written or io.StringIO()))
    )
    assert embed_files([tmp_path / "a.txt"], tmp_path / "out", progress=shown).is_complete
    if written:
        written.close()  # flushes without an error what it still holds


def test_lines_are_json_and_the_last_has_every_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    written = io.StringIO()
    embed_files([tmp_path / "a.txt"], tmp_path / "out", progress=JsonProgress(stream=written))
    assert json.loads(written.getvalue().splitlines()[-1])["rows"] == 2


@pytest.mark.parametrize("hours", [0, 25, 300])
@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_bar_keeps_its_width_and_the_line_its_end(width: int, hours: int) -> None:
    written = io.StringIO()
    console = type(BarProgress().console)(file=written, width=width, force_terminal=True)
    shown = BarProgress(console=console, clock=iter([0.0, *[100.0] * 9]).__next__)
    shown.begin(rows=20_000_000, rows_before=0, parts=2_000, parts_before=0)
    assert shown._bar
    shown._bar.tasks[0].start_time = shown._bar.get_time() - 3600 * hours - 100
    shown.add(rows=1_234_567, tokens=123_456_789, truncated=54_321, failed=999)
    shown.end()
    line = Text.from_ansi(written.getvalue()).plain.rstrip().splitlines()[-1]
    assert sum(letter in "━╸╺" for letter in line) >= 20
    assert "1,234,567/20,0" in line
    assert " left" in line
    assert f" {hours}:0" in line[-10:]
    assert ("tokens/s" in line) == (width == 200)
    assert len(line) <= width


def test_what_is_kept_and_what_is_done_again_is_counted() -> None:
    shown = Progress()
    assert shown.kept() == "No row had been embedded."
    shown.begin(rows=20_000, rows_before=1_000, parts=20, parts_before=1)
    shown.add(rows=1_000, tokens=1, truncated=0, failed=0)
    shown.committed()
    shown.add(rows=84, tokens=1, truncated=0, failed=0)
    assert shown.kept() == (
        "2 of 20 parts with 2,000 rows are kept;"
        " 84 rows of an unfinished part will be embedded again."
    )
