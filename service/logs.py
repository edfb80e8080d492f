"""Logs: one JSON object per line on stdout, written by a thread so that no request waits for it."""

import json
import logging
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from typing import TextIO

from service.context import current_request_id
from service.tracing import current_trace_id


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
        return json.dumps(line, default=repr)


class _DeferringHandler(QueueHandler):
    """Hands records on as they are: formatting them is the listening thread's work."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        vars(record).update(request_id=current_request_id.get(), trace_id=current_trace_id())
        return record


@contextmanager
def logging_to(stream: TextIO, level: str) -> Iterator[None]:
    """Send every logger's records of at least ``level`` to ``stream`` while the block runs."""
    writer = logging.StreamHandler(stream)
    writer.setFormatter(JsonFormatter())
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    listener = QueueListener(records, writer)
    handler = _DeferringHandler(records)
    root = logging.getLogger()
    previous_level = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    # uvicorn tells its own life at info; ours says the same in our words.
    logging.getLogger("uvicorn.error").setLevel(max(root.level, logging.WARNING))
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(previous_level)
        listener.stop()
