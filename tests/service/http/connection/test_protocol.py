"""One connection: heads, bodies and answers have their time, and requests their order."""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from s2sent.service.http.connection.lingering import LINGER_SECONDS
from tests.support.connections import KEEP_ALIVE_SECONDS, all_of, served, serving_app
from tests.support.wire import request

GET = request(path=b"/", method=b"GET")
POST = request(path=b"/")
BROKEN = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
ID = b"X-Request-Id: mine\r\n"
BROKEN_AND_NAMED = BROKEN.replace(b"Host: a\r\n", b"Host: a\r\n" + ID)
TOO_LONG = b"X-Long: " + b"a" * 66_000 + b"\r\n"
LONG = request(path=b"/", fields=ID + TOO_LONG)
PIECE = 1_000_000  # bytes of a streamed answer that are sent at a time
LARGE = 24 * PIECE  # bytes, more than the sockets between hold


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a GET at once, anything else when it has kept its client waiting for long."""
    if scope["method"] != "GET":
        await asyncio.sleep(3 * KEEP_ALIVE_SECONDS)
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


async def forever(_scope: Scope, receive: Receive, _send: Send) -> None:
    """Never answers, until its client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with served(app) as port:
        yield port


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


async def test_a_long_keep_alive_gives_a_head_and_a_reader_no_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only an idle connection has it, as a load balancer keeps one."""
    monkeypatch.setattr(
        "s2sent.service.http.connection.protocol.PATIENCE_SECONDS", KEEP_ALIVE_SECONDS
    )
    async with served(app, keep_alive_seconds=600) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            await asyncio.sleep(2 * KEEP_ALIVE_SECONDS)
            writer.write(GET)
            assert await reader.readuntil(b"ok")
        writer.write(GET[:-1])
        assert await reader.read() == b""
        writer.close()
    async with served(large, keep_alive_seconds=600) as port:
        assert await unread_by_the_kernel(port) < LARGE


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


@pytest.mark.parametrize("before", [[POST], [POST, POST], [POST, GET]])
async def test_complete_requests_before_a_broken_one_are_answered(
    port: int, before: list[bytes]
) -> None:
    """Then the connection ends: an answer of 400 would be taken for that of another request."""
    said = await all_of(port, b"".join([*before, BROKEN]))
    assert said.count(b"HTTP/1.1 200 OK") == len(before)
    assert said.endswith(b"\r\n\r\nok")
    assert b"connection: close" in said.rpartition(b"HTTP/1.1")[2]


async def test_a_broken_body_is_refused_once() -> None:
    """Its application hears that the client is gone, and what it says is not sent."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            pass
        await heard.put(message["type"])
        await app({**scope, "method": "GET"}, receive, send)

    async with served(late) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(BROKEN)
        assert await asyncio.wait_for(heard.get(), LINGER_SECONDS / 2)
        said = await reader.read()
        writer.close()
    assert said.startswith(b"HTTP/1.1 400 Bad Request")
    assert said.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("sent", [LONG, BROKEN_AND_NAMED], ids=["a long head", "a broken body"])
async def test_a_refusal_has_the_request_id_and_the_log_too(
    caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    caplog.set_level(logging.INFO, logger="s2sent.service")
    async with served(forever) as port:
        said = await all_of(port, sent)
    assert b"\r\nx-request-id: mine\r\n" in said
    (record,) = [one for one in caplog.records if "invalid request refused" in one.getMessage()]
    assert vars(record)["fields"]["request_id"] == "mine"


async def test_a_refusal_has_no_id_of_a_request_before(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(path=b"/", method=b"GET", fields=ID))
    assert await reader.readuntil(b"ok")
    writer.write(b"\0\0\0\0")
    said = await reader.read()
    writer.close()
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"x-request-id: mine" not in said


@pytest.mark.parametrize(
    ("target", "openai"),
    [
        (b"/v1/embeddings?a=1", True),
        (b"http://test/v1/embeddings", True),
        (b"/embed?/v1/embeddings", False),
    ],
)
async def test_a_refusal_has_the_envelope_of_its_path(
    port: int, target: bytes, openai: bool
) -> None:
    said = await all_of(port, request(path=target, fields=TOO_LONG))
    body = json.loads(said.partition(b"\r\n\r\n")[2])
    assert isinstance(body["error"], dict) is openai


async def test_a_request_hears_that_its_client_left_also_with_another_behind_it() -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            await heard.put(message["type"])
        await heard.put(message["type"])

    async with served(waiting) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST + POST)
        assert await heard.get() == "http.request"
        writer.close()
        assert await asyncio.wait_for(heard.get(), 5) == "http.disconnect"
    assert heard.empty()  # the second request was not begun


CLOSING: dict[str, tuple[bytes, Any]] = {
    "asked by the client": (b"/", {"fields": b"Connection: close\r\n"}),
    "by an old client": (b"/", {"version": b"HTTP/1.0"}),
    "asked by the server": (b"/close", {}),
    "behind another": (b"/close", {}),
    "as the server ends": (b"/", {}),
}


async def early(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers before the body is read, and ends the connection if asked."""
    fields = [(b"content-length", b"2")]
    fields += [(b"connection", b"close")] * (scope["path"] == "/close")
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize("kind", CLOSING)
async def test_a_client_that_still_sends_its_body_gets_its_answer(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no reset, which would throw the answer away; its connection ends with the body."""
    monkeypatch.setattr("s2sent.service.http.connection.lingering.LINGER_SECONDS", 600)
    path, options = CLOSING[kind]
    sent = request(b"a" * 300_000, path, **options)
    sent = GET + sent if kind == "behind another" else sent
    async with serving_app(early, keep_alive_seconds=600) as (port, connections):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent[:1_000])
        assert await reader.readuntil(b"ok")
        if kind == "behind another":
            assert await reader.readuntil(b"ok")
        if kind == "as the server ends":
            next(iter(connections)).shutdown()
        for start in range(1_000, len(sent), 100_000):
            await asyncio.sleep(0.05)  # a reset would be seen by now
            writer.write(sent[start : start + 100_000])
            await writer.drain()
        assert await reader.read() == b""
        while connections:
            await asyncio.sleep(0.01)
        writer.close()


async def test_what_follows_an_answer_that_closes_is_not_begun() -> None:
    begun = 0

    async def counting(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal begun
        begun += 1
        await early(scope, receive, send)

    async with served(counting, keep_alive_seconds=600) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        first = request(b"a" * 1_000, b"/close")
        writer.write(first[:500])
        assert await reader.readuntil(b"ok")
        writer.write(first[500:] + GET + b"\0\0")
        assert await reader.read() == b""
        writer.close()
    assert begun == 1


async def test_a_body_that_does_not_end_is_not_awaited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "s2sent.service.http.connection.lingering.LINGER_SECONDS", KEEP_ALIVE_SECONDS
    )
    async with serving_app(early, keep_alive_seconds=600) as (port, connections):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"", b"/close", length=1_000))
        assert (await reader.read()).endswith(b"ok")
        while connections:
            await asyncio.sleep(0.01)
        writer.close()


async def test_any_number_of_offered_upgrades_is_ignored(port: int) -> None:
    offer = b"Connection: upgrade\r\nUpgrade: h2c\r\n"
    upgrade = request(path=b"/", method=b"GET", fields=offer)
    said = await all_of(port, upgrade * 1_500)
    assert said.count(b"HTTP/1.1 200 OK") == 1_500


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with many bytes, or as many as it is asked for, and ends the connection if asked."""
    size = int(scope["query_string"] or LARGE)
    fields = [(b"content-length", b"%d" % size)]
    if scope["path"] == "/last":
        fields.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    piece = PIECE if scope["path"] == "/stream" else size
    for end in range(piece, size + 1, piece):
        await send({"type": "http.response.body", "body": bytes(piece), "more_body": end < size})


def small_window(port: int) -> socket.socket:
    """A connection whose client holds little that it has not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)  # the standard library's
    return client


async def unread_by_the_kernel(port: int) -> int:
    """How many bytes of an answer the sockets take when its client reads none."""
    reader, writer = await asyncio.open_connection(sock=small_window(port), limit=1)
    writer.write(request(path=b"/last?%d" % LARGE, method=b"GET"))
    await asyncio.sleep(4 * KEEP_ALIVE_SECONDS)  # until it is closed
    received = 0
    with contextlib.suppress(ConnectionResetError):
        while data := await reader.read(1 << 20):
            received += len(data)
    writer.close()
    return received


@pytest.mark.parametrize("path", [b"/", b"/last", b"/stream"])
@pytest.mark.parametrize("read_before", [0, 1_000_000])
async def test_an_answer_that_nobody_reads_closes_its_connection(
    path: bytes, read_before: int
) -> None:
    async with served(large) as port:
        reader, writer = await asyncio.open_connection(sock=small_window(port), limit=1)
        writer.write(request(path=path, method=b"GET"))
        received = 0
        while received < read_before:
            received += len(await reader.read(1 << 16))
        await asyncio.sleep(5 * KEEP_ALIVE_SECONDS)
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(1 << 20):
                received += len(data)
        writer.close()
    assert received < LARGE


async def test_a_client_that_reads_is_not_cut_for_what_the_answer_before_left() -> None:
    """The first answer leaves less unread than the second one, which follows it at once."""
    async with served(large) as port:
        taken = await unread_by_the_kernel(port)
        client = small_window(port)
        reader, writer = await asyncio.open_connection(sock=client, limit=1 << 20)
        first = request(path=b"/?%d" % (taken + 30_000), method=b"GET")
        writer.write(first + request(path=b"/", method=b"GET"))
        received = 0
        while received < taken + LARGE:
            data = await reader.read(300_000)
            assert data, f"closed after {received} bytes"
            received += len(data)
            await asyncio.sleep(KEEP_ALIVE_SECONDS / 20)
        writer.close()


@pytest.mark.parametrize("path", [b"/", b"/last"])
async def test_an_answer_that_is_read_slowly_arrives(path: bytes) -> None:
    async with served(large) as port:
        reader, writer = await asyncio.open_connection(sock=small_window(port), limit=1 << 20)
        writer.write(request(path=path, method=b"GET"))
        received, began = 0, asyncio.get_running_loop().time()
        while received < LARGE:
            received += len(await reader.read(LARGE // 40))
            await asyncio.sleep(KEEP_ALIVE_SECONDS / 10)
        assert asyncio.get_running_loop().time() - began > 3 * KEEP_ALIVE_SECONDS
        writer.close()
