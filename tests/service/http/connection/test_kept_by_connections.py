"""What belongs to a connection goes with it, and what belongs to a request with its answer."""

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import Callable

import pytest
from starlette.types import Receive, Scope, Send

from tests.support.connections import serving_app
from tests.support.wire import request

GET = request(path=b"/", method=b"GET")
LONG_SECONDS = 600
SOON_SECONDS = 20


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is true, at most SOON_SECONDS."""
    async with asyncio.timeout(SOON_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers without reading the body."""
    fields = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": b"ok"})


SENT = {"nothing": b"", "half a head": GET[:-2], "a request": GET, "no request": b"\0\0\0"}


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
@pytest.mark.usefixtures("collector")
async def test_a_reset_connection_is_forgotten_at_once(sent: bytes) -> None:
    """Not when its keep-alive timeout ends: a client can open thousands until then."""
    async with serving_app(app, keep_alive_seconds=LONG_SECONDS) as (port, connections):
        client = socket.create_connection(("127.0.0.1", port))
        client.setblocking(False)  # the standard library's
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: bool(connections))
        connection = weakref.ref(next(iter(connections)))
        if sent:
            client.send(sent)
            await asyncio.sleep(0.1)
        client.close()  # with a reset
        await until(lambda: not connections)

        def forgotten() -> bool:
            gc.collect()
            return connection() is None

        await until(forgotten)


async def test_an_idle_connection_keeps_no_body_that_was_not_read() -> None:
    async with serving_app(app, keep_alive_seconds=LONG_SECONDS) as (port, connections):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"a" * 50_000, b"/"))
        assert await reader.readuntil(b"ok")
        (connection,) = connections
        assert connection.cycle.body == b""
        writer.close()


async def test_requests_that_wait_for_an_answer_before_them_are_few_at_a_time() -> None:
    """Thousands that come in one read are begun as those before them are answered."""
    gate, begun = asyncio.Event(), 0
    count = 10_000

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal begun
        begun += 1
        await receive()
        await gate.wait()
        await app(scope, receive, send)

    async with serving_app(slow, keep_alive_seconds=LONG_SECONDS) as (port, connections):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nA:\r\n\r\n" * count)
        await until(lambda: begun == 1)
        await asyncio.sleep(0.1)
        (connection,) = connections
        assert len(connection.pipeline) < 500
        gate.set()
        for _ in range(count):
            await reader.readuntil(b"\r\n\r\nok")
        writer.close()
    assert begun == count
