"""Logs: one JSON object per line on stdout, written by a thread so that no request waits for it."""

import json
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler
from typing import TextIO

import orjson

from service.http.context import current_request
from service.http.tracing import trace_id_of

# How long records gather after a batch was written. Each waking of the thread takes Python's lock
# from the event loop: one for each record cost a tenth of a millisecond of processor time.
GATHER_SECONDS = 0.02


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; ``extra={"fields": {...}}`` adds fields to it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("request_id", "trace_id"):
            if value := getattr(record, name, None):
                line[name] = value
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _as_json(line)


def _as_json(line: dict[str, object]) -> str:
    """In ASCII, so that any stream takes it; what JSON does not know is shown by its ``repr``."""
    try:
        # A dataclass may hide fields from its repr.
        text = orjson.dumps(line, default=repr, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    except orjson.JSONEncodeError:  # such as for a lone surrogate, which json escapes
        text = b""
    if text and text.isascii():
        return text.decode()
    return json.dumps(line, default=repr, separators=(",", ":"))


class _BatchingHandler(QueueHandler):
    """Hands records on as they are to a thread of its own, which formats and writes them.

    The thread writes the first record at once and then lets others gather for GATHER_SECONDS. What
    cannot be formatted or written is told on stderr, and takes no other record with it.
    """

    def __init__(self, stream: TextIO) -> None:
        # None is the last.
        self._records: queue.SimpleQueue[logging.LogRecord | None] = queue.SimpleQueue()
        super().__init__(self._records)
        self.setFormatter(JsonFormatter())
        self._stream = stream
        self._separator = ""
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        if request := current_request.get():
            vars(record)["request_id"] = request.request_id
            if request.span is not None:
                vars(record)["trace_id"] = trace_id_of(request.span)
        return record

    def close(self) -> None:
        """Return once all that was handed on is written."""
        self._records.put(None)
        self._thread.join()
        super().close()

    def _run(self) -> None:
        while True:
            batch = [self._records.get()]
            batch += [self._records.get() for _ in range(self._records.qsize())]
            self._write([record for record in batch if record])
            if None in batch:
                return
            time.sleep(GATHER_SECONDS)

    def _write(self, records: Sequence[logging.LogRecord]) -> None:
        lines = "".join(map(self._line, records))
        if not lines:
            return
        try:
            self._stream.write(self._separator + lines)
            self._stream.flush()
            self._separator = ""
        except Exception:
            self._separator = "\n"  # the last line may be cut; the next must not continue it
            self.handleError(records[-1])

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return ""


@contextmanager
def _without_what_no_line_has() -> Iterator[None]:
    """Records know neither their place in the code nor their thread, process and task.

    Finding out takes as long as the rest of a record (Python's logging HOWTO, Optimization).
    """
    switches = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing")
    before = {name: getattr(logging, name) for name in switches}
    vars(logging).update(dict.fromkeys(switches))
    try:
        yield
    finally:
        vars(logging).update(before)


@contextmanager
def logging_to(stream: TextIO, level: str) -> Iterator[None]:
    """Send every logger's records of at least ``level`` to ``stream`` while the block runs."""
    handler = _BatchingHandler(stream)
    root = logging.getLogger()
    previous_level = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    # uvicorn tells its own life at info; ours says the same in our words.
    logging.getLogger("uvicorn.error").setLevel(max(root.level, logging.WARNING))
    try:
        with _without_what_no_line_has():
            yield
    finally:
        root.removeHandler(handler)
        root.setLevel(previous_level)
        handler.close()
