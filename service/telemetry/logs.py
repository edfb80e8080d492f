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

# So many bytes a pipe takes whole (PIPE_BUF, pipe(7)): lines of several processes do not mix.
ATOMIC_BYTES = 4_096

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
    """Queues each record with the log fields of its context; the listener formats it."""

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
        """Hand what was written to the operating system."""
        self._unflushed = 0
        try:
            self._stream.flush()
        except Exception:  # the same contract
            self.handleError(self._last)


class _LineListener(QueueListener):
    """Flushes its handlers before it waits: records that came together are handed on together."""

    queue: SimpleQueue[logging.LogRecord | None]

    def dequeue(self, block: bool) -> logging.LogRecord:
        """The next record, as soon as there is one."""
        if self.queue.empty():
            for handler in self.handlers:
                handler.flush()
        return super().dequeue(block)


@contextmanager
def logging_to(stream: TextIO, level: str, *, process: str | None = None) -> Iterator[None]:
    """Send every logger's records of at least ``level`` to ``stream`` while the block runs.

    ``process`` is the name of this process in every line, where several write to the stream.
    When the block ends, every record logged in it has been written.
    """
    records: SimpleQueue[logging.LogRecord | None] = SimpleQueue()
    handler = _RecordQueueHandler(records)
    lines = _LineHandler(stream, process)
    listener = _LineListener(records, lines)
    root = logging.getLogger()
    previous_level = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    # uvicorn logs its start and stop at info; the service logs its own.
    logging.getLogger("uvicorn.error").setLevel(max(root.level, logging.WARNING))
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(previous_level)
        listener.stop()
        lines.flush()
        handler.close()
