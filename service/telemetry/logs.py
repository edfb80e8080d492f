"""Logging set-up: one JSON object per line on a stream, written by a background thread."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import TextIO

import orjson

from s2sent.service.threads import no_more_threads

# So many bytes a pipe takes whole (PIPE_BUF, pipe(7)): lines of several processes do not mix.
ATOMIC_BYTES = 4_096

MAX_WAITING_RECORDS = 10_000  # of some 1.3 kB each
STOP_TIMEOUT_SECONDS = 2.0

# Fields of every line that is logged in the current context, such as the request's id.
log_fields: ContextVar[Mapping[str, object]] = ContextVar("log_fields")


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; ``extra={"fields": {...}}`` adds fields to it.

    ``process`` names the process that writes, where there are several.
    """

    def __init__(self, process: str | None = None) -> None:
        super().__init__()
        self._process = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._process,
        }
        context: Mapping[str, object] = getattr(record, "context", {})
        line |= {name: value for name, value in context.items() if value is not None}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _as_json(line)


def _as_json(line: dict[str, object]) -> str:
    """In ASCII, so that any stream takes it; a value that JSON lacks is shown by its ``repr``."""
    try:
        # A dataclass may hide fields from its repr.
        text = orjson.dumps(line, default=repr, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    except orjson.JSONEncodeError:  # such as for a lone surrogate, which json escapes
        text = b""
    if text and text.isascii():
        return text.decode()
    return json.dumps(line, default=repr, separators=(",", ":"))


class _RecordQueueHandler(QueueHandler):
    """Queues each record with the log fields of its context; the listener formats it.

    While `MAX_WAITING_RECORDS` wait, as behind a pipe that nobody reads, records are dropped and
    counted in ``dropped``.
    """

    queue: SimpleQueue[logging.LogRecord | None]

    def __init__(self, queue: SimpleQueue[logging.LogRecord | None]) -> None:
        super().__init__(queue)
        self.dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a record, or drop it. `logging.Handler.handle` holds the handler's lock."""
        if self.queue.qsize() >= MAX_WAITING_RECORDS:
            self.dropped += 1
        else:
            self.queue.put_nowait(record)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        vars(record)["context"] = log_fields.get({})
        return record


class _LineHandler(logging.Handler):
    """Writes each record as a line of its own, also after a write that failed half-way.

    A record that cannot be formatted or written is reported on stderr (`logging.raiseExceptions`).
    """

    def __init__(self, stream: TextIO, process: str | None) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter(process))
        self._shared = process is not None  # others write to the stream too
        self._unflushed = 0
        self._stream = stream
        self._separator = ""
        self._last = logging.makeLogRecord({})

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; it stays in the stream's buffer until `flush`."""
        self._last = record
        try:
            line = self._separator + self.format(record) + "\n"
            if self._shared and self._unflushed + len(line) > ATOMIC_BYTES:
                self.flush()
            self._unflushed += len(line)
            self._separator = "\n"  # stays if writing fails, so that no line continues this one
            self._stream.write(line)
            self._separator = ""
        except Exception:  # logging's contract: a handler reports its errors and does not raise
            self.handleError(record)

    def flush(self) -> None:
        self._unflushed = 0
        try:
            self._stream.flush()
        except Exception:  # the same contract
            self.handleError(self._last)


class _LineListener(QueueListener):
    """Flushes its lines before it waits: records that came together are handed on together."""

    queue: SimpleQueue[logging.LogRecord | None]

    def __init__(self, records: _RecordQueueHandler, lines: _LineHandler) -> None:
        super().__init__(records.queue, lines)
        self._records = records
        self._lines = lines
        self._told_dropped = 0

    def dequeue(self, block: bool) -> logging.LogRecord:
        if self.queue.empty():
            self._tell_dropped()
            self._lines.flush()
        return super().dequeue(block)

    def start(self) -> None:
        """Start the thread that writes; raises NoMoreThreads."""
        try:
            super().start()
        except RuntimeError:
            self._thread = None
            raise no_more_threads("log") from None

    def stop(self) -> None:
        """Write and flush what waits, for at most `STOP_TIMEOUT_SECONDS`."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self.enqueue_sentinel()
        thread.join(STOP_TIMEOUT_SECONDS)
        if not thread.is_alive():  # or it holds the stream's lock
            self._tell_dropped()
            self._lines.flush()

    def _tell_dropped(self) -> None:
        if count := self._records.dropped - self._told_dropped:
            self._told_dropped += count
            message = "%d log lines were dropped: they were read more slowly than written"
            told = {"msg": message, "args": (count,), "name": __name__, "levelname": "WARNING"}
            self._lines.handle(logging.makeLogRecord(told))


@contextmanager
def logging_to(stream: TextIO, level: str, *, process: str | None = None) -> Iterator[None]:
    """Send every logger's records of at least ``level`` to ``stream`` while the block runs.

    ``process`` is the name of this process in every line, where several write to the stream.
    When the block ends, every record logged in it has been written, unless the stream is not read:
    then records are dropped, and the end waits for at most `STOP_TIMEOUT_SECONDS`.
    """
    handler = _RecordQueueHandler(SimpleQueue())
    lines = _LineHandler(stream, process)
    listener = _LineListener(handler, lines)
    root = logging.getLogger()
    previous_level = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    # uvicorn logs its start and stop at info; the service logs its own.
    logging.getLogger("uvicorn.error").setLevel(max(root.level, logging.WARNING))
    try:
        listener.start()
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(previous_level)
        listener.stop()
        handler.close()
        lines.close()  # `logging.shutdown` would flush it
