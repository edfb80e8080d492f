"""What one connection writes: head and body together, and nothing late."""

import asyncio
from collections.abc import Callable, Iterable

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from service.http.connection import HttpConnection
from tests.support.wire import request

GET = request(path=b"/", method=b"GET")


class Written(asyncio.Transport):
    """A transport that keeps each write, one entry a system call."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing comes by itself here."""

    def resume_reading(self) -> None:
        """Nothing comes by itself here."""


def answering(*bodies: bytes, gate: asyncio.Event | None = None) -> ASGIApp:
    """Answers with the pieces; the second waits for ``gate``."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        fields = [(b"content-length", b"%d" % len(b"".join(bodies)))]
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        for index, body in enumerate(bodies):
            if index and gate:
                await gate.wait()
            more = index < len(bodies) - 1
            await send({"type": "http.response.body", "body": body, "more_body": more})

    return app


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


def connected(app: ASGIApp) -> tuple[HttpConnection, Written]:
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    connection, transport = HttpConnection(config, ServerState(), {}), Written()
    connection.connection_made(transport)
    return connection, transport


async def test_an_answer_is_one_write() -> None:
    connection, transport = connected(answering(b"[[0.5]]"))
    connection.data_received(GET + GET)
    await until(lambda: len(transport.writes) == 2)
    for written in transport.writes:
        assert written.startswith(b"HTTP/1.1 200 OK\r\n")
        assert written.endswith(b"\r\n\r\n[[0.5]]")
    connection.connection_lost(None)


async def test_a_piece_of_a_body_does_not_wait_for_the_next() -> None:
    gate = asyncio.Event()
    connection, transport = connected(answering(b"one", b"two", gate=gate))
    connection.data_received(GET)
    await until(lambda: bool(transport.writes))
    assert transport.writes[0].endswith(b"\r\n\r\none")
    gate.set()
    await until(lambda: len(transport.writes) == 2)
    assert transport.writes[1] == b"two"
    connection.connection_lost(None)


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
async def test_an_answer_without_a_body_is_written(method: bytes) -> None:
    connection, transport = connected(answering(b""))
    connection.data_received(request(path=b"/", method=method))
    await until(lambda: bool(transport.writes))
    assert transport.writes[0].endswith(b"content-length: 0\r\n\r\n")
    connection.connection_lost(None)


async def test_a_client_that_waits_to_be_told_is_told_to_go_on() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await answering(body)(scope, receive, send)

    connection, transport = connected(app)
    connection.data_received(request(path=b"/", fields=b"Expect: 100-continue\r\n", length=2))
    await until(lambda: bool(transport.writes))
    assert transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    connection.data_received(b"{}")
    await until(lambda: len(transport.writes) == 2)
    assert transport.writes[1].endswith(b"\r\n\r\n{}")
    connection.connection_lost(None)


async def test_the_head_of_an_answer_that_breaks_off_is_sent_before_the_end() -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    connection, transport = connected(app)
    connection.data_received(GET)
    await until(lambda: transport.closed)
    assert b"".join(transport.writes).startswith(b"HTTP/1.1 200 OK\r\n")
