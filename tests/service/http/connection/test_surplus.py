"""What a request has beside its head and its body is dropped, and bounded as the head is."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest
from starlette.types import Receive, Scope, Send

from s2sent.service.http.connection.malformed import MAX_HEAD_BYTES
from tests.support.connections import all_of, served
from tests.support.wire import request

CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
CHUNK = b"5\r\nhello\r\n"
ABOVE = MAX_HEAD_BYTES + 100


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers, once the body has come, with its length and the names of the headers."""
    length, more = 0, True
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    names = [name.decode() for name, _ in scope["headers"]]
    content = json.dumps({"length": length, "names": names}).encode()
    fields = [(b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": content})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with served(echo, keep_alive_seconds=20) as port:
        yield port


def answers(said: bytes) -> list[dict[str, object]]:
    """The bodies of the answers of `echo` in what a server said."""
    return [json.loads(part.splitlines()[-1]) for part in said.split(b"HTTP/1.1 ")[1:]]


async def test_trailers_are_dropped_and_never_headers(port: int) -> None:
    trailers = b"X-Priority: bulk\r\nAccept: a/b\r\nAuthorization: Bearer a\r\nContent-Type: a\r\n"
    trailed = CHUNKED + b"\r\n" + CHUNK + b"0\r\n" + trailers + b"\r\n"
    first, second = answers(await all_of(port, trailed, LAST))
    assert first == {"length": 5, "names": ["host", "transfer-encoding"]}
    assert second["names"] == ["host", "connection"]


SURPLUS = {
    "trailers": CHUNKED + b"\r\n" + CHUNK + b"0\r\n" + b"a:\r\n" * (ABOVE // 4) + b"\r\n",
    "a trailer": CHUNKED + b"\r\n" + CHUNK + b"0\r\na: " + b"a" * ABOVE + b"\r\n\r\n",
    "the name of a trailer": CHUNKED + b"\r\n" + CHUNK + b"0\r\n" + b"a" * ABOVE + b": b\r\n\r\n",
    "an extension": CHUNKED + b"\r\n5;" + b"a" * ABOVE + b"\r\nhello\r\n0\r\n\r\n",
    "an extension of the last chunk": CHUNKED
    + b"\r\n"
    + CHUNK
    + b"0;"
    + b"a" * ABOVE
    + b"\r\n\r\n",
    "many extensions": CHUNKED + b"\r\n" + b"1;a=b\r\na\r\n" * (ABOVE // 4) + b"0\r\n\r\n",
    "a long size": CHUNKED + b"\r\n" + b"0" * ABOVE + b"5\r\nhello\r\n0\r\n\r\n",
    "padded sizes": CHUNKED + b"\r\n" + b"000000001\r\na\r\n" * (ABOVE // 8) + b"0\r\n\r\n",
    "empty lines": b"\r\n" * (ABOVE // 2) + LAST,
    "blanks before a header": b"GET / HTTP/1.1\r\nA:" + b" " * ABOVE + b"a\r\n\r\n",
    "blanks after a header": b"GET / HTTP/1.1\r\nA: a" + b" " * ABOVE + b"\r\n\r\n",
}


@pytest.mark.parametrize("sent", SURPLUS.values(), ids=SURPLUS)
async def test_more_of_it_than_a_head_may_have_is_refused(port: int, sent: bytes) -> None:
    said = await all_of(port, sent)
    assert said.startswith(b"HTTP/1.1 431 ")
    assert said.count(b"HTTP/1.1 ") == 1
    error = json.loads(said.partition(b"\r\n\r\n")[2])
    assert error["error_type"] == "HeadTooLarge"
    assert str(MAX_HEAD_BYTES) in error["error"]


async def test_it_is_refused_also_without_an_end(port: int) -> None:
    """So a client cannot send it for as long as it likes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(CHUNKED + b"\r\n" + CHUNK + b"0\r\n" + b"a:\r\n" * (ABOVE // 4))
    assert (await reader.readline()).startswith(b"HTTP/1.1 431 ")
    writer.close()


BODY = 20_000
ALL, SOME = b"a" * BODY, b"a" * 20
WITHIN = {
    "chunks of a byte": CHUNKED + b"\r\n" + b"1\r\na\r\n" * BODY + b"0\r\n\r\n",
    "some bytes": CHUNKED + b"\r\n" + b"14\r\n%b\r\n" % SOME * (BODY // 20) + b"0\r\n\r\n",
    "one chunk": CHUNKED + b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY, ALL),
    "a length": request(ALL, b"/"),
    "trailers": CHUNKED + b"\r\n%x\r\n%b\r\n0\r\n" % (BODY, ALL) + b"a: b\r\n" * 10_000 + b"\r\n",
}


@pytest.mark.parametrize("sent", WITHIN.values(), ids=WITHIN)
async def test_bodies_do_not_count(port: int, sent: bytes) -> None:
    *bodies, last = answers(await all_of(port, sent * 5, LAST))
    assert [answer["length"] for answer in bodies] == 5 * [BODY]
    assert last["length"] == 0


async def test_each_request_has_the_whole_limit(port: int) -> None:
    trailers = b"a: b\r\n" * (MAX_HEAD_BYTES // 12)
    trailed = CHUNKED + b"\r\n" + CHUNK + b"0\r\n" + trailers + b"\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(6):
        writer.write(trailed)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        await reader.readuntil(b"}")
    writer.close()


async def test_a_fault_of_the_parsing_is_not_told_as_the_clients(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets 500 with its request id, and the log the traceback under it."""

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("s2sent.service.http.connection.protocol.check_head", broken)
    async with served(echo) as port:
        said = await all_of(port, request(path=b"/", fields=b"X-Request-Id: mine\r\n"))
    assert said.startswith(b"HTTP/1.1 500 ")
    assert b"a bug" not in said
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert vars(record)["fields"]["request_id"] == "mine"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)


@pytest.mark.parametrize("target", [b"http://test", b"test", b"?a=b"])
async def test_a_target_without_a_path_is_the_clients_fault(
    port: int, caplog: pytest.LogCaptureFixture, target: bytes
) -> None:
    said = await all_of(port, request(path=target, method=b"OPTIONS"))
    assert said.startswith(b"HTTP/1.1 400 ")
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
