"""A connection is closed when the head or the rest of a request does not arrive in time."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from service.http.connection import HttpConnection
from service.server import listen
from tests.support.wire import request

KEEP_ALIVE_SECONDS = 0.2
GET = request(path=b"/", method=b"GET")


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a GET at once, anything else when it has kept its client waiting for long."""
    if scope["method"] != "GET":
        await asyncio.sleep(3 * KEEP_ALIVE_SECONDS)
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    config = uvicorn.Config(app, http=HttpConnection, lifespan="off", log_config=None)
    config.timeout_keep_alive = KEEP_ALIVE_SECONDS  # type: ignore[assignment]  # any number of seconds will do
    server = uvicorn.Server(config)
    with listen("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()[1]
        server.should_exit = True
        await serving


async def all_of(port: int, *pieces: bytes) -> bytes:
    """Everything a server says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
    content = await reader.read()
    writer.close()
    return content


@pytest.mark.parametrize("sent", [b"", b"GE", GET[:-1], b"GET / HTTP/1.1\r\nX-Long: a"])
async def test_a_head_that_does_not_come_closes_its_connection(port: int, sent: bytes) -> None:
    assert await all_of(port, sent) == b""


async def test_a_head_that_drips_closes_its_connection(port: int) -> None:
    """Each header in time does not make up for a head that has no end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n")
    closed = asyncio.ensure_future(reader.read())
    while not closed.done():
        writer.write(b"X-Another: a\r\n")
        await asyncio.wait([closed], timeout=KEEP_ALIVE_SECONDS / 10)
    writer.close()
    assert closed.exception() or closed.result() == b""  # reset, if a header met it closed


async def test_the_second_head_of_a_connection_has_to_come_as_well(port: int) -> None:
    assert (await all_of(port, GET, GET[:-1])).endswith(b"\r\n\r\nok")


async def test_a_request_may_take_longer_than_a_head(port: int) -> None:
    assert (await all_of(port, request(path=b"/"))).endswith(b"\r\n\r\nok")


async def test_a_body_that_nobody_waits_for_closes_its_connection(port: int) -> None:
    """The answer came before its body, which drips on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(path=b"/", method=b"GET", length=10_000))
    closed = asyncio.ensure_future(reader.read())
    while not closed.done():
        writer.write(b"a")
        await asyncio.wait([closed], timeout=KEEP_ALIVE_SECONDS / 10)
    writer.close()
    assert closed.exception() or closed.result().endswith(b"ok")
