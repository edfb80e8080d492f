"""The progress of a run: a bar for people, a JSON line a second for machines, or nothing."""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, TextIO

import orjson
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

INTERVAL_SECONDS = 1.0
BAR_WIDTH = 20
BESIDE_TEXT = BAR_WIDTH + len("  100:00:00")  # of hours


@dataclass
class Progress:
    """Counts what is done; this one shows nothing.

    Rows and parts that an earlier run committed are counted as done, and not in the rates.
    """

    clock: Callable[[], float] = time.monotonic
    rows: int = 0
    rows_total: int = 0
    rows_before: int = 0
    tokens: int = 0
    truncated: int = 0
    failed: int = 0
    parts: int = 0
    parts_total: int = 0
    rows_committed: int = 0
    began: float = field(default=0.0, init=False)

    def begin(self, *, rows: int, rows_before: int, parts: int, parts_before: int) -> None:
        """Start the clock."""
        self.rows_total, self.rows, self.rows_before = rows, rows_before, rows_before
        self.parts_total, self.parts = parts, parts_before
        self.rows_committed = rows_before
        self.began = self.clock()
        self.show()

    def add(self, *, rows: int, tokens: int, truncated: int, failed: int) -> None:
        """Count rows that are embedded."""
        self.rows += rows
        self.tokens += tokens
        self.truncated += truncated
        self.failed += failed
        self.show()

    def committed(self) -> None:
        """Count a part, whose rows have been counted."""
        self.parts += 1
        self.rows_committed = self.rows
        self.show()

    def end(self) -> None:
        """Show the last state."""

    def show(self) -> None:
        """Show the state."""

    def kept(self) -> str:
        """What stays of a run that is stopped now, in a sentence."""
        if not self.parts_total:
            return "No row had been embedded."
        again = self.rows - self.rows_committed
        return (
            f"{self.parts} of {self.parts_total} parts with {self.rows_committed:,} rows are kept;"
            f" {again:,} rows of an unfinished part will be embedded again."
        )

    def summary(self) -> dict[str, Any]:
        """Counts, rates per second, and seconds left, None while unknown."""
        seconds = max(self.clock() - self.began, 1e-9)
        rate = (self.rows - self.rows_before) / seconds
        left = round((self.rows_total - self.rows) / rate) if rate else None
        return {
            "rows": self.rows,
            "rows_total": self.rows_total,
            "parts": self.parts,
            "parts_total": self.parts_total,
            "tokens": self.tokens,
            "truncated": self.truncated,
            "failed": self.failed,
            "seconds": round(seconds, 1),
            "rows_per_second": round(rate, 1),
            "tokens_per_second": round(self.tokens / seconds, 1),
            "seconds_left": left,
        }


@dataclass
class JsonProgress(Progress):
    """A JSON object a line: one a second, by a thread of its own, and one at the end."""

    stream: TextIO | None = field(default_factory=lambda: sys.stdout)  # None where it is closed
    _ended: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def begin(self, *, rows: int, rows_before: int, parts: int, parts_before: int) -> None:
        """Start the clock and the lines."""
        super().begin(rows=rows, rows_before=rows_before, parts=parts, parts_before=parts_before)
        self._thread = threading.Thread(target=self._write_lines, name="progress", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Write the last line."""
        self._ended.set()
        if self._thread:
            self._thread.join()
            self._thread = None
            self._write()

    def _write_lines(self) -> None:
        while not self._ended.wait(INTERVAL_SECONDS):
            self._write()

    def _write(self) -> None:
        if self.stream is None:
            return
        try:
            self.stream.write(orjson.dumps(self.summary()).decode() + "\n")
            self.stream.flush()
        except OSError:  # its reader is gone or its disk full, and the run goes on
            _silence(self.stream)


class BarConsole(Console):
    """A console that is given up when its reader has gone; rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Write nothing more."""
        _silence(self.file)


class Elapsed(ProgressColumn):
    """The time since the start; rich's own column writes days out and would take the bar's room."""

    def render(self, task: Task) -> Text:
        """As hours, minutes and seconds."""
        return Text(_duration(int(task.elapsed or 0)), style="progress.elapsed")


@dataclass
class BarProgress(Progress):
    """A bar on standard error."""

    console: Console = field(default_factory=lambda: BarConsole(stderr=True))
    _bar: Bar | None = field(default=None, init=False)
    _task: TaskID = field(default=TaskID(0), init=False)

    def begin(self, *, rows: int, rows_before: int, parts: int, parts_before: int) -> None:
        """Show the bar."""
        columns = (BarColumn(BAR_WIDTH), TextColumn("{task.description}"), Elapsed())
        self._bar = Bar(*columns, console=self.console)
        self._task = self._bar.add_task("", total=rows, completed=rows_before)
        self._bar.start()
        super().begin(rows=rows, rows_before=rows_before, parts=parts, parts_before=parts_before)

    def show(self) -> None:
        """Move the bar."""
        if self._bar:
            self._bar.update(self._task, completed=self.rows, description=self._text())

    def end(self) -> None:
        """Leave the bar as it is."""
        if self._bar:
            self.show()
            try:
                self._bar.stop()
            except OSError:  # nobody reads it
                _silence(self.console.file)
            self._bar = None

    def _text(self) -> str:
        """What fits beside the bar, the most important first."""
        now = self.summary()
        pieces = [f"{now['rows']:,}/{now['rows_total']:,} rows"]
        if now["seconds_left"] is not None:
            pieces.append(f"{_duration(now['seconds_left'])} left")
        if now["failed"]:
            pieces.append(f"{now['failed']:,} failed")
        pieces += [
            f"{now['rows_per_second']:,.0f} rows/s",
            f"{now['parts']}/{now['parts_total']} parts",
            f"{now['truncated']:,} truncated",
            f"{now['tokens_per_second']:,.0f} tokens/s",
        ]
        while len(pieces) > 1 and len(", ".join(pieces)) > self.console.width - BESIDE_TEXT:
            pieces.pop()
        return ", ".join(pieces)


def _silence(stream: IO[str]) -> None:
    """Send to nowhere what a stream is given from now on, and what it still holds.

    Otherwise it would fail again when the process ends (the note on SIGPIPE in Python's `signal`).
    """
    with suppress(OSError), open(os.devnull, "w") as nowhere:  # OSError: it is no file
        os.dup2(nowhere.fileno(), stream.fileno())


def _duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
