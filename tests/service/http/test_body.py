"""Reading a body in time, and cancelling the work of a client that disconnects."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Message

from s2sent.service.api.embedding import Service
from s2sent.service.app import create_app
from s2sent.service.settings import Settings
from tests.support.fake_engine import FakeEngine


class Exchange:
    """One request to the application, with every message from the client under control."""

    def __init__(
        self,
        engine: FakeEngine,
        path: str = "/embed",
        fields: Sequence[tuple[bytes, bytes]] = (),
        **settings: Any,
    ) -> None:
        app = create_app(Settings(**settings), engine=engine)
        service: Service = app.state.service
        self._metrics = service.metrics
        self.incoming: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        self.task = asyncio.ensure_future(app(_scope(path, fields), self.incoming.get, self._send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def client_sends(self, body: bytes, *, more_body: bool = False) -> None:
        self.incoming.put_nowait({"type": "http.request", "body": body, "more_body": more_body})

    def client_leaves(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})

    @property
    def registry(self) -> CollectorRegistry:
        return self._metrics.registry

    def count(self, status: str) -> float | None:
        labels = {"route": "/embed", "status": status}
        return self.registry.get_sample_value("s2sent_requests_total", labels)


CANCELLED = "s2sent_requests_cancelled_total", {"stage": "body"}
TIMED_OUT = "s2sent_requests_timed_out_total", {"stage": "body"}


def _scope(path: str, fields: Sequence[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), *fields],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }


async def test_a_client_that_leaves_cancels_its_work() -> None:
    engine = FakeEngine(gate=asyncio.Event())
    exchange = Exchange(engine)
    exchange.client_sends(b'{"inputs": "a"}')
    await engine.entered.wait()
    exchange.client_leaves()
    await exchange.task
    assert engine.cancelled.is_set()
    assert exchange.count("499") == 1
    assert exchange.registry.get_sample_value("s2sent_requests_in_flight") == 0


async def test_a_client_that_leaves_while_sending_never_reaches_the_engine() -> None:
    engine = FakeEngine()
    exchange = Exchange(engine)
    exchange.client_sends(b'{"inp', more_body=True)
    exchange.client_leaves()
    await exchange.task
    assert not engine.calls
    assert exchange.count("499") == 1
    assert exchange.registry.get_sample_value(*CANCELLED) == 1


async def test_a_server_that_gives_up_on_a_request_cancels_its_work_and_says_so() -> None:
    engine = FakeEngine(gate=asyncio.Event())
    exchange = Exchange(engine)
    exchange.client_sends(b'{"inputs": "a"}')
    await engine.entered.wait()
    exchange.task.cancel()
    await exchange.task
    assert engine.cancelled.is_set()
    assert exchange.sent[0]["status"] == 503
    assert b"shutting down" in exchange.sent[1]["body"]
    assert exchange.count("503") == 1


async def test_a_server_that_gives_up_on_a_body_says_so() -> None:
    exchange = Exchange(FakeEngine())
    exchange.client_sends(b'{"inp', more_body=True)
    await asyncio.sleep(0)
    exchange.task.cancel()
    await exchange.task
    assert exchange.sent[0]["status"] == 503


MANY = ["a"] * 65  # more than are written at once
ANSWERS: list[tuple[str, dict[str, Any]]] = [
    ("/embed", {"inputs": MANY}),
    ("/v1/embeddings", {"input": MANY}),
    ("/decode", {"ids": [[1]] * 65}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": MANY}}),
    ("/similarity", {"inputs": {"queries": ["a"], "documents": MANY}}),
]


@pytest.mark.parametrize(("path", "body"), ANSWERS)
async def test_an_answer_is_written_as_a_part_of_its_request(
    path: str, body: dict[str, Any]
) -> None:
    """In flight until it is written, with what is left of its time, for as long as anyone waits."""
    engine = FakeEngine(writing_gate=asyncio.Event())
    exchange = Exchange(engine, path=path, request_timeout_seconds=7)
    exchange.client_sends(json.dumps(body).encode())
    await engine.entered.wait()
    assert engine.in_flight == 1
    ((seconds, stage),) = engine.tracked
    assert 6 < seconds < 7
    assert stage == "serialize"
    exchange.client_leaves()
    await exchange.task
    assert engine.cancelled.is_set()
    assert exchange.sent[0]["status"] == 499


async def test_a_transfer_coding_that_is_not_undone_is_refused() -> None:
    exchange = Exchange(FakeEngine(), fields=[(b"transfer-encoding", b"gzip, chunked")])
    exchange.client_sends(b'{"inputs": "a"}')
    await exchange.task
    assert exchange.sent[0]["status"] == 415
    assert b"'gzip, chunked'" in exchange.sent[1]["body"]


@pytest.mark.parametrize("encoding", [b"", b"identity"])
async def test_a_body_as_it_is_may_say_so(encoding: bytes) -> None:
    exchange = Exchange(FakeEngine(), fields=[(b"content-encoding", encoding)])
    exchange.client_sends(b'{"inputs": "a"}')
    await exchange.task
    assert exchange.sent[0]["status"] == 200


async def test_a_body_in_pieces_is_put_together() -> None:
    engine = FakeEngine()
    exchange = Exchange(engine)
    exchange.client_sends(b'{"inputs": "a', more_body=True)
    exchange.client_sends("é".encode()[:1], more_body=True)
    exchange.client_sends("é".encode()[1:] + b'"}')
    await exchange.task
    assert engine.calls[0].texts == ["aé"]
    assert exchange.sent[0]["status"] == 200


async def test_a_body_that_does_not_arrive_in_time_is_answered_504() -> None:
    exchange = Exchange(FakeEngine(), request_timeout_seconds=0.01)
    exchange.client_sends(b'{"inp', more_body=True)
    await exchange.task
    assert exchange.sent[0]["status"] == 504
    assert exchange.registry.get_sample_value(*TIMED_OUT) == 1


async def test_time_spent_on_the_body_is_taken_off_the_engines() -> None:
    engine = FakeEngine()
    exchange = Exchange(engine, request_timeout_seconds=60)
    exchange.client_sends(b'{"inputs": "a"}')
    await exchange.task
    assert engine.calls[0].timeout_seconds is not None
    assert engine.calls[0].timeout_seconds < 60


async def test_nothing_of_the_watch_is_left_when_the_answer_is_sent() -> None:
    before = asyncio.all_tasks()
    exchange = Exchange(FakeEngine())
    exchange.client_sends(b'{"inputs": "a"}')
    await exchange.task
    await asyncio.sleep(0)  # one turn, for the cancelled watch to end
    assert asyncio.all_tasks() == before
