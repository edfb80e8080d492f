"""Log lines are JSON, one per record, and are all written before the block ends."""

import errno
import io
import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from s2sent.service.telemetry.logs import log_fields, logging_to

logger = logging.getLogger("service.test")

PATIENCE_SECONDS = 60.0


@dataclass
class Holder:
    """Says nothing of what it holds."""

    held: str = field(repr=False)


class Unshowable:
    """Fails when it is to be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("it has no repr")


class FullDisk(io.StringIO):
    """Takes half of what is written and fails, until it is no longer ``full``."""

    def __init__(self) -> None:
        super().__init__()
        self.full = True
        self.met = threading.Event()

    def write(self, text: str) -> int:
        if not self.full:
            return super().write(text)
        super().write(text[: len(text) // 2])
        self.met.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Unread(io.StringIO):
    """Holds every writer up, as a pipe that nobody reads does, until it is ``read``."""

    def __init__(self) -> None:
        super().__init__()
        self.read_from = threading.Event()
        self.met = threading.Event()

    def write(self, text: str) -> int:
        self.met.set()
        self.read_from.wait(PATIENCE_SECONDS)
        return super().write(text)


class Flushes(io.StringIO):
    """Holds writers up until it is ``open``, and counts its flushes of something."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.flushed = threading.Event()
        self.count = 0

    def write(self, text: str) -> int:
        assert self.open.wait(PATIENCE_SECONDS)
        return super().write(text)

    def flush(self) -> None:
        if self.getvalue():
            self.count += 1
            self.flushed.set()


def values(stream: io.StringIO, name: str) -> list[Any]:
    """What each line has under a name."""
    return [json.loads(line)[name] for line in stream.getvalue().splitlines()]


def test_a_line_has_the_records_fields_and_the_request_id() -> None:
    stream = io.StringIO()
    token = log_fields.set({"request_id": "id-1", "trace_id": None})
    with logging_to(stream, "info"):
        logger.info("took %d ms", 3, extra={"fields": {"route": "/embed", "status": 200}})
    log_fields.reset(token)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "service.test",
        "message": "took 3 ms",
        "request_id": "id-1",
        "route": "/embed",
        "status": 200,
    }


def test_an_exception_stays_on_its_line() -> None:
    stream = io.StringIO()
    with logging_to(stream, "info"):
        try:
            raise RuntimeError("two\nlines")
        except RuntimeError:
            logger.exception("it failed")
    (text,) = stream.getvalue().splitlines()
    assert "RuntimeError: two\nlines" in json.loads(text)["exception"]


def test_less_severe_records_are_left_out() -> None:
    stream = io.StringIO()
    with logging_to(stream, "warning"):
        logger.info("quiet")
        logger.warning("loud")
        logging.getLogger("uvicorn.error").info("Started server process")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_what_json_does_not_know_is_shown_all_the_same() -> None:
    stream = io.StringIO()
    with logging_to(stream, "info"):
        logger.info(
            "odd",
            extra={
                "fields": {
                    "value": {
                        1,
                    },
                    "surrogate": "\ud800",
                }
            },
        )
    assert json.loads(stream.getvalue())["value"] == "{1}"


def test_a_line_is_ascii_whatever_it_says() -> None:
    stream = io.StringIO()
    with logging_to(stream, "info"):
        logger.info("größer")
        logger.info("odd", extra={"fields": {"surrogate": "\ud800", 1: 2**70}})
    assert stream.getvalue().isascii()
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["message"] == "größer"
    assert (second["surrogate"], second["1"]) == ("\ud800", 2**70)


def test_what_an_objects_repr_hides_stays_hidden() -> None:
    stream = io.StringIO()
    with logging_to(stream, "info"):
        logger.info("held", extra={"fields": {"value": Holder("secret")}})
    assert json.loads(stream.getvalue())["value"] == "Holder()"


def test_every_record_of_every_thread_is_written_in_its_order() -> None:
    stream = io.StringIO()
    records = 500

    def work(worker: int) -> None:
        for number in range(records):
            logger.info("%d", number, extra={"fields": {"worker": worker}})

    with logging_to(stream, "info"), ThreadPoolExecutor() as pool:
        list(pool.map(work, range(4)))
    lines = list(zip(values(stream, "worker"), values(stream, "message"), strict=True))
    for worker in range(4):
        assert [text for whose, text in lines if whose == worker] == [
            str(n) for n in range(records)
        ]


def test_records_that_came_together_are_flushed_together() -> None:
    stream = Flushes()
    with logging_to(stream, "info"):
        for number in range(100):
            logger.info("%d", number)
        stream.open.set()
    assert values(stream, "message") == [str(number) for number in range(100)]
    assert stream.count <= 2  # when the last one was written, and at the end


def test_a_record_alone_is_flushed_at_once() -> None:
    stream = Flushes()
    stream.open.set()
    with logging_to(stream, "info"):
        logger.info("alone")
        assert stream.flushed.wait(PATIENCE_SECONDS)
    assert values(stream, "message") == ["alone"]


def test_a_record_that_cannot_be_formatted_takes_no_other_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    with logging_to(stream, "info"):
        logger.info("before")
        logger.info("odd", extra={"fields": {"value": Unshowable()}})
        logger.info("after")
    assert values(stream, "message") == ["before", "after"]
    assert "it has no repr" in capsys.readouterr().err


def test_a_stream_that_fails_for_a_while_takes_no_later_record_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = FullDisk()
    with logging_to(stream, "info"):
        logger.info("lost")
        assert stream.met.wait(PATIENCE_SECONDS)
        stream.full = False
        logger.info("kept")
    cut, *later = stream.getvalue().splitlines()
    assert not cut.endswith("}")
    assert [json.loads(line)["message"] for line in later] == ["kept"]
    assert "No space left on device" in capsys.readouterr().err


def test_a_stream_that_nobody_reads_holds_few_records_and_tells_how_many_were_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("s2sent.service.telemetry.logs.MAX_WAITING_RECORDS", 10)
    stream = Unread()
    with logging_to(stream, "info"):
        logger.info("first")
        assert stream.met.wait(PATIENCE_SECONDS)
        for number in range(100):
            logger.info("%d", number)
        stream.read_from.set()
    told = "90 log lines were dropped: they were read more slowly than written"
    assert values(stream, "message") == ["first", *map(str, range(10)), told]
    assert values(stream, "level")[-1] == "warning"


def test_a_stream_that_nobody_reads_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("s2sent.service.telemetry.logs.STOP_TIMEOUT_SECONDS", 0.01)
    stream = Unread()
    with logging_to(stream, "info"):
        logger.info("first")
        assert stream.met.wait(PATIENCE_SECONDS)
    assert not stream.read_from.is_set()
    stream.read_from.set()


def test_a_process_whose_output_nobody_reads_ends() -> None:
    program = (
        "import logging, sys; from s2sent.service.process import end_process;"
        "from s2sent.service.telemetry.logs import logging_to\n"
        "with logging_to(sys.stdout, 'info'):\n"
        "    [logging.info('x' * 1_000) for _ in range(1_000)]\n"  # a pipe holds 64 KiB
        "end_process(3)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.wait(PATIENCE_SECONDS) == 3


def test_a_stream_that_never_recovers_does_not_hold_up_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = FullDisk()
    with logging_to(stream, "info"):
        for number in range(100):
            logger.info("%d", number)
    assert "Traceback" in capsys.readouterr().err
