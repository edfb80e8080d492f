"""What all requests hold together is bounded: bodies that come, answers that nobody reads."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from s2sent.service.app import create_app
from s2sent.service.engine.deadlines import InFlightRequests
from s2sent.service.errors import NotReady, Overloaded, ServiceError
from s2sent.service.http.memory import FREE_BYTES, ByteBudget, Holding
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, InProcess, engine_of_blocks
from tests.support.running_process import Running
from tests.support.wire import request

SOON_SECONDS = 20
LIMIT = 1_000_000
SHORT = request(json.dumps({"inputs": "a"}).encode())
# An answer of 20 MB, more than the sockets between hold: 2,000 embeddings of 1,000 numbers.
TEXTS, DIM = 2_000, 1_000
LONG = request(json.dumps({"inputs": ["a"] * TEXTS}).encode())


class Client:
    """A connection whose sockets hold little that its client has not read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def head(self) -> bytes:
        """The line and the headers of the answer."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await asyncio.wait_for(self.reader.readexactly(1), SOON_SECONDS)
        return head

    async def rest(self) -> int:
        """How many bytes come until the server closes."""
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while data := await asyncio.wait_for(self.reader.read(1 << 20), SOON_SECONDS):
                received += len(data)
        return received


Connect = Callable[[Running, bytes], Awaitable[Client]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Makes a new connection that has sent something; all are closed at the end."""
    writers = []

    async def of(running: Running, sent: bytes) -> Client:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.connect(("127.0.0.1", running.port))
        client.setblocking(False)  # the standard library's
        reader, writer = await asyncio.open_connection(sock=client, limit=1)
        writers.append(writer)
        writer.write(sent)
        return Client(reader, writer)

    yield of
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)


class TimedEngine(FakeEngine):
    """A fake that ends the writing of answers as the engine does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.requests = InFlightRequests(Metrics(), 60)

    def track(self, timeout_seconds: float, *, stage: Callable[[], str]) -> Any:
        return self.requests.track(timeout_seconds, stage=stage)

    async def drain(self, timeout_seconds: float) -> bool:
        finished = await self.requests.is_idle_within(timeout_seconds)
        self.requests.abort(lambda: NotReady("The service is shutting down."))
        return finished


@contextlib.asynccontextmanager
async def running(engine: FakeEngine, **settings: object) -> AsyncIterator[Running]:
    """A process that ends with the test."""
    running = Running(engine, **settings)
    try:
        yield running
    finally:
        if not running.task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await running.stopped()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def held_by_bodies(server: Running) -> int:
    return server.process._app.state.service.bodies._memory.held  # type: ignore[no-any-return]


def length_of(head: bytes) -> int:
    return int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])


# --- the budget ---


def test_what_is_alone_or_small_always_fits() -> None:
    budget = ByteBudget(LIMIT, Metrics(), what="they", setting="s")
    alone, small, more = Holding(budget), Holding(budget), Holding(budget)
    alone.grow_to(2 * LIMIT)
    small.grow_to(FREE_BYTES)
    with pytest.raises(Overloaded, match=f"take {2 * LIMIT} bytes, of {LIMIT} .*again in 1 s"):
        more.grow_to(FREE_BYTES + 1)
    alone.release()
    alone.release()
    more.grow_to(FREE_BYTES + 1)
    assert budget.held == FREE_BYTES + 1


def test_what_is_refused_holds_nothing_and_is_counted() -> None:
    metrics = Metrics()
    budget = ByteBudget(LIMIT, metrics, what="they", setting="s")
    first, second = Holding(budget), Holding(budget)
    first.grow_to(LIMIT // 2)
    second.grow_to(LIMIT // 2)
    with pytest.raises(Overloaded):
        first.grow_to(LIMIT // 2 + 1)
    assert budget.held == LIMIT // 2
    value = metrics.registry.get_sample_value
    assert value("s2sent_requests_rejected_total", {"reason": "memory"}) == 1


# --- bodies ---


async def test_bodies_above_the_limit_are_refused_until_others_end(connect: Connect) -> None:
    part, length = b'{"inputs": "' + b"a" * 400_000, 500_000
    async with running(FakeEngine(), max_held_body_bytes=LIMIT) as server:
        begun = [await connect(server, request(part, length=length)) for _ in range(2)]
        await until(lambda: held_by_bodies(server) == 2 * len(part))
        refused = await connect(server, request(part, length=length))
        head = await refused.head()
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1\r\n" in head.lower()
        refused.writer.close()
        short = await connect(server, SHORT)
        assert (await short.head()).startswith(b"HTTP/1.1 200 ")
        begun[0].writer.close()
        await until(lambda: held_by_bodies(server) == len(part))
        rest = b"a" * (length - len(part) - 2) + b'"}'
        begun[1].writer.write(rest)
        assert (await begun[1].head()).startswith(b"HTTP/1.1 200 ")
        again = await connect(server, request(part + rest))
        assert (await again.head()).startswith(b"HTTP/1.1 200 ")


async def test_bodies_in_chunks_are_counted_as_they_come(connect: Connect) -> None:
    head = b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    chunk = head + b"Transfer-Encoding: chunked\r\n\r\n61a80\r\n" + b"a" * 400_000
    async with running(FakeEngine(), max_held_body_bytes=LIMIT) as server:
        clients = [await connect(server, chunk) for _ in range(3)]
        done, _ = await asyncio.wait(
            [asyncio.ensure_future(client.head()) for client in clients],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert [task.result()[:13] for task in done] == [b"HTTP/1.1 429 "]
        for client in clients:
            client.writer.close()


async def test_a_body_is_held_until_its_request_is_answered(connect: Connect) -> None:
    """Its texts wait for the encoder all the while."""
    body = request(json.dumps({"inputs": "a" * 600_000}).encode())
    engine = FakeEngine(gate=asyncio.Event())
    async with running(engine, max_held_body_bytes=LIMIT) as server:
        waiting = await connect(server, body)
        await engine.entered.wait()
        refused = await connect(server, body)
        assert (await refused.head()).startswith(b"HTTP/1.1 429 ")
        assert engine.gate is not None
        engine.gate.set()
        assert (await waiting.head()).startswith(b"HTTP/1.1 200 ")
        again = await connect(server, body)
        assert (await again.head()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("path", "error", "status"),
    [
        (path, error, status)
        for path in (b"/embed", b"/", b"/similarity", b"/v1/embeddings", b"/explain", b"/tokenize")
        for error, status in [(NotReady("Not yet."), 503), (Overloaded("Too many."), 429)]
    ],
)
async def test_a_body_is_not_waited_for_where_the_engine_says_no_already(
    connect: Connect, path: bytes, error: ServiceError, status: int
) -> None:
    async with running(FakeEngine(refusal=error)) as server:
        client = await connect(server, request(b'{"inputs": "', path, length=1_000_000))
        assert (await client.head()).startswith(b"HTTP/1.1 %d " % status)
        client.writer.close()  # the server reads on until then, or for some seconds


# --- answers ---


async def test_answers_that_nobody_reads_are_few_and_in_flight(connect: Connect) -> None:
    async with running(FakeEngine(dim=DIM), max_unsent_bytes=30_000_000) as server:
        unread = await connect(server, LONG)
        assert (await unread.head()).startswith(b"HTTP/1.1 200 ")
        refused = await connect(server, LONG)
        assert (await refused.head()).startswith(b"HTTP/1.1 429 ")
        short = await connect(server, SHORT)
        assert (await short.head()).startswith(b"HTTP/1.1 200 ")
        metrics = (await server.client.get("/metrics")).text
        assert "\ns2sent_requests_in_flight 2.0\n" in metrics
        assert 's2sent_requests_rejected_total{reason="memory"} 1.0\n' in metrics
        unread.writer.close()
        await until(lambda: server.process._app.state.service.answer_memory.held == 0)
        again = await connect(server, LONG)
        head = await again.head()
        assert head.startswith(b"HTTP/1.1 200 ")
        assert len(await again.reader.readexactly(length_of(head))) == length_of(head)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/embed", {"inputs": ["a"] * TEXTS}),
        (b"/embed", {"inputs": ["a"] * TEXTS, "details": True}),
        (b"/v1/embeddings", {"input": ["a"] * TEXTS}),
        (b"/v1/embeddings", {"input": ["a"] * TEXTS, "encoding_format": "base64"}),
        (b"/tokenize", {"inputs": ["a" * 400] * TEXTS}),
        (b"/similarity", {"inputs": {"queries": ["a"] * 1_000, "documents": ["a"] * 65}}),
    ],
)
async def test_long_answers_are_whole(
    connect: Connect, path: bytes, body: dict[str, object]
) -> None:
    async with running(FakeEngine(dim=DIM)) as server:
        client = await connect(server, request(json.dumps(body).encode(), path))
        length = length_of(await client.head())
        assert length > FREE_BYTES
        assert json.loads(await client.reader.readexactly(length))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {"inputs": ["a" * 2_000]}, 429),
        ("/decode", {"ids": [1] * 7_000}, 429),
        ("/explain", {"inputs": ["a"] * 400}, 429),  # 8 numbers of 6 blocks each, 4 bytes each
        ("/explain", {"inputs": ["a"] * 100, "features": True}, 429),
        ("/tokenize", {"inputs": ["a"] * 1_000}, 500),
        ("/explain", {"inputs": ["a"] * 300}, 500),
    ],
)
async def test_long_answers_that_are_foreseen_are_refused_before_any_work(
    path: str, body: dict[str, object], status: int
) -> None:
    """A short one goes on to the engine, which fails here."""
    app = create_app(Settings(), engine=engine_of_blocks(error=RuntimeError()))
    app.state.service.answer_memory.held = Settings().max_unsent_bytes
    async with httpx.AsyncClient(transport=InProcess(app), base_url="http://test") as client:
        assert (await client.post(path, json=body)).status_code == status


async def test_a_long_answer_that_is_not_read_ends_at_its_deadline(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(TimedEngine(dim=DIM), request_timeout_seconds=1.5) as server:
        unread = await connect(server, LONG)
        length = length_of(await unread.head())
        await until(lambda: "the answer was cut off" in caplog.text)
        assert await unread.rest() < length
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


async def test_a_client_that_begins_to_read_after_sigterm_gets_all_of_its_answer(
    connect: Connect,
) -> None:
    server = Running(TimedEngine(dim=DIM))
    late = await connect(server, LONG)
    head = await late.head()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.5)
    assert await late.rest() == length_of(head)
    assert await server.stopped() == 0


async def test_answers_that_are_not_sent_show_in_the_exit_code(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("s2sent.service.server.SEND_TIMEOUT_SECONDS", 1)
    server = Running(TimedEngine(dim=DIM), drain_timeout_seconds=0.5)
    unread = await connect(server, LONG)
    await unread.head()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await server.stopped() == 1
    assert "the answer was cut off: The service is shutting down." in caplog.text


async def test_a_short_answer_that_is_not_sent_shows_in_the_exit_code(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not in flight any more; here every answer counts as short."""
    monkeypatch.setattr("s2sent.service.server.SEND_TIMEOUT_SECONDS", 1)
    monkeypatch.setattr("s2sent.service.api.pieces.SENT_BYTES", 100_000_000)
    server = Running(TimedEngine(dim=DIM), drain_timeout_seconds=0.5)
    unread = await connect(server, LONG)
    await unread.head()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await server.stopped() == 1
    assert "1 answers were not sent" in caplog.text
    unread.writer.close()
