"""Log lines are JSON, one per record, and are all written before the block ends."""

import io
import json
import logging

from service.context import current_request_id
from service.logs import logging_to

logger = logging.getLogger("service.test")


def test_a_line_has_the_records_fields_and_the_request_id() -> None:
    stream = io.StringIO()
    token = current_request_id.set("id-1")
    with logging_to(stream, "info"):
        logger.info("took %d ms", 3, extra={"fields": {"route": "/embed", "status": 200}})
    current_request_id.reset(token)
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
