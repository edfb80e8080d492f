"""The run over one shard: read, embed and write at the same time, part after part.

A thread reads rows and starts their embedding, the embedder's threads work, and the calling thread
writes what is done. One window of rows waits between them at most, which bounds the memory.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from s2sent.model.runtime.malloc import return_freed_memory
from s2sent.service.bulk.input.rows import InputRows
from s2sent.service.bulk.job import (
    MAX_FAILED,
    BulkError,
    Embedder,
    InputError,
    InputRow,
    Options,
    Pending,
    Shard,
)
from s2sent.service.bulk.output.atomic_files import file_sha256, writing
from s2sent.service.bulk.output.folder import OutputFolder, PartRecord
from s2sent.service.bulk.output.writers import Chunk, PartWriter, open_writer, prepare, to_stored
from s2sent.service.bulk.progress import Progress

# Rows that are sorted by length, and written, together: a part has some windows of equal size.
MAX_WINDOW_ROWS = 1_024
WINDOW_CHARACTERS = 1 << 20  # of rows that wait together; a window ends with the row that has them
WAITING_WINDOWS = 1
POLL_SECONDS = 0.2  # between two looks at whether the run is to stop


@dataclass(frozen=True)
class Window:
    """Rows of one part on their way; the texts among them stand at ``positions``."""

    part: int
    first_row: int
    last_of_part: bool
    rows: list[InputRow]
    positions: list[int]
    pending: Pending | None


@dataclass
class _Part:
    """A part that is being written."""

    number: int
    writer: PartWriter
    rows: int = 0
    tokens: int = 0
    truncated: int = 0
    failed: int = 0


@dataclass
class Runner:
    """One shard of a run. ``null_errors`` keeps rows that cannot be embedded, without a vector.

    ``check_stopped`` is called some times a second, and raises to end the run. A run that keeps
    errors ends when more than ``max_failed`` of the texts it gave to the embedder have failed.
    """

    output: OutputFolder
    embedder: Embedder
    null_errors: bool = False
    progress: Progress = field(default_factory=Progress)
    check_stopped: Callable[[], None] = lambda: None
    max_failed: float = MAX_FAILED
    _texts: int = field(default=0, init=False)
    _failed: int = field(default=0, init=False)
    _last_errors: list[str] = field(default_factory=list, init=False)

    def run(self, shard: Shard) -> None:
        """Commit every part of the shard that is not; raises BulkError at what stops it."""
        committed = self.output.committed()
        mine = shard.parts(self.output.parts)
        todo = [part for part in mine if part not in committed]
        rows = {part: len(self.output.rows_of(part)) for part in mine}
        self.progress.begin(
            rows=sum(rows.values()),
            rows_before=sum(rows[part] for part in mine if part in committed),
            parts=len(mine),
            parts_before=len(mine) - len(todo),
        )
        if todo:
            prepare(self.output)
            try:
                with _Prefetch(self._windows(todo), self.check_stopped) as windows:
                    self._write(windows)
            finally:
                self.output.discard_unfinished()
        self.progress.end()

    def _windows(self, parts: list[int]) -> Iterator[Window]:
        """The windows of the parts, in order; each is being embedded when it is handed out."""
        size = window_rows(self.output.options)
        most = self.output.model.max_characters
        with InputRows(self.output.inputs, self.output.options, most) as source:
            for part in parts:
                rows = self.output.rows_of(part)
                source.skip_to(rows.start)
                start = rows.start
                while start < rows.stop:
                    taken = source.take(min(size, rows.stop - start), WINDOW_CHARACTERS)
                    first, start = start, start + len(taken)
                    yield self._start(part, first, start == rows.stop, taken)

    def _start(self, part: int, first_row: int, last: bool, rows: list[InputRow]) -> Window:
        if not self.null_errors:
            for row in rows:
                if row.error:
                    raise _bad_row(row, row.error)
        positions = [at for at, row in enumerate(rows) if not row.error]
        texts = [rows[at].text for at in positions]
        pending = self.embedder.start(texts) if texts else None
        return Window(part, first_row, last, rows, positions, pending)

    def _write(self, windows: Iterator[Window]) -> None:
        part: _Part | None = None
        try:
            for window in windows:
                while window.pending and not window.pending.wait(POLL_SECONDS):
                    self.check_stopped()
                part = part or _Part(window.part, open_writer(self.output, window.part))
                chunk = self._chunk(window)
                part.writer.write(chunk)
                self._count(part, chunk)
                return_freed_memory()  # takes milliseconds, and a window takes seconds
                if window.last_of_part:
                    self._commit(part)
                    part = None
                self.check_stopped()
        finally:
            if part is not None:
                part.writer.abandon()

    def _chunk(self, window: Window) -> Chunk:
        options, rows = self.output.options, window.rows
        width = options.stored_width(self.output.model)
        errors = [row.error for row in rows]
        tokens, truncated = np.zeros(len(rows), np.int32), np.zeros(len(rows), np.bool_)
        embedded = window.pending.embedded if window.pending else None
        dim = embedded.vectors.shape[1] if embedded else self.output.model.dim
        vectors = np.zeros((len(rows), dim), np.float32)
        if embedded:
            at = window.positions
            vectors[at], tokens[at], truncated[at] = (
                embedded.vectors,
                embedded.tokens,
                embedded.truncated,
            )
            for position, error in embedded.errors.items():
                errors[at[position]] = error
        stored, usable = to_stored(vectors, options)
        for index in np.flatnonzero(~usable):
            errors[index] = errors[index] or "the embedding is zero or not finite"
        self._count_failed([errors[position] for position in window.positions])
        if not self.null_errors:
            for row, reason in zip(rows, errors, strict=True):
                if reason:
                    raise _bad_row(row, reason)
        assert stored.shape == (len(rows), width)  # noqa: S101  # what the schema says
        return Chunk(
            window.first_row,
            [row.id for row in rows],
            stored,
            tokens,
            truncated,
            errors,
            {name: [row.kept[at] for row in rows] for at, name in enumerate(options.keep)},
        )

    def _count_failed(self, errors: list[str | None]) -> None:
        """Count texts that the embedder was given, with the error of each."""
        failed = [error for error in errors if error]
        self._texts += len(errors)
        self._failed += len(failed)
        self._last_errors = failed[-1:] or self._last_errors

    def _count(self, part: _Part, chunk: Chunk) -> None:
        known = chunk.tokens[chunk.tokens > 0]
        failed = sum(error is not None for error in chunk.errors)
        truncated = int(chunk.truncated.sum())
        part.rows += len(chunk)
        part.tokens += int(known.sum())
        part.truncated += truncated
        part.failed += failed
        self.progress.add(
            rows=len(chunk), tokens=int(known.sum()), truncated=truncated, failed=failed
        )

    def _commit(self, part: _Part) -> None:
        if self._failed > self.max_failed * self._texts:
            raise BulkError(
                f"{self._failed} of {self._texts} texts have no embedding, the last one because"
                f" {self._last_errors[0]}. Mend the model or the service and run the same command"
                " with --resume, or allow a larger share by --max-failed."
            )
        for file in self.output.inputs:
            file.require_unchanged()
        path = part.writer.commit()
        with writing(path):
            size, digest = path.stat().st_size, file_sha256(path)
        self.output.commit(
            PartRecord(
                part=part.number,
                file=path.name,
                first_row=self.output.rows_of(part.number).start,
                rows=part.rows,
                bytes=size,
                sha256=digest,
                tokens=part.tokens,
                truncated=part.truncated,
                failed=part.failed,
            )
        )
        self.progress.committed()


class _Prefetch:
    """An iterator whose items are made by a thread, WAITING_WINDOWS ahead at most."""

    def __init__(self, items: Iterator[Window], check_stopped: Callable[[], None]) -> None:
        self._items = items
        self._check_stopped = check_stopped
        self._queue: queue.Queue[Window | BaseException | None] = queue.Queue(WAITING_WINDOWS)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="read", daemon=True)

    def __enter__(self) -> Iterator[Window]:
        self._thread.start()
        return iter(self._get, None)

    def __exit__(self, *_exception: object) -> None:
        self._stopped.set()
        while self._thread.is_alive():
            with suppress(queue.Empty):
                self._queue.get_nowait()
            self._thread.join(0.01)

    def _get(self) -> Window | None:
        item = self._take()
        if isinstance(item, BaseException):
            raise item
        return item

    def _take(self) -> Window | BaseException | None:
        while True:
            with suppress(queue.Empty):
                return self._queue.get(timeout=POLL_SECONDS)
            self._check_stopped()

    def _fill(self) -> None:
        try:
            for item in self._items:
                self._queue.put(item)
                if self._stopped.is_set():
                    return
            self._queue.put(None)
        except BaseException as error:  # whatever it is, the thread that waits must have it
            self._queue.put(error)


def window_rows(options: Options) -> int:
    """Rows of a window: an equal share of a part, at most MAX_WINDOW_ROWS."""
    windows = -(-options.rows_per_shard // MAX_WINDOW_ROWS)
    return -(-options.rows_per_shard // windows)


def _bad_row(row: InputRow, error: str) -> InputError:
    return InputError(
        f"{row.place}: {error}. Mend the row and begin again with --overwrite, or leave its"
        " embedding out with --on-error null --resume."
    )
