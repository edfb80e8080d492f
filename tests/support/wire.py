"""A raw HTTP/1.1 connection, for requests that no HTTP client library would send."""

import json
import select
import socket
from dataclasses import dataclass
from typing import Any

TIMEOUT_SECONDS = 20
JSON_TYPE = b"Content-Type: application/json\r\n"


@dataclass(frozen=True)
class Answer:
    """One response; the names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        """The content, which is JSON."""
        return json.loads(self.content)


class Wire:
    """A connection; a context manager that closes it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        self._received = b""

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *pieces: bytes) -> "Wire":
        """Send pieces one after the other; a server that has closed already may not take them."""
        try:
            for piece in pieces:
                self.socket.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return self

    def answers_within(self, seconds: float) -> bool:
        """Whether the server sends, or closes, in this time."""
        return bool(select.select([self.socket], [], [], seconds)[0])

    def answer(self, *, to_head: bool = False) -> Answer:
        """The next response; one to a HEAD request has no content."""
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (f.split(": ", 1) for f in fields)}
        length = 0 if to_head else int(headers.get("content-length", 0))
        while len(self._received) < length:
            self._receive()
        content, self._received = self._received[:length], self._received[length:]
        return Answer(int(line.split(" ")[1]), headers, content)

    def is_closed(self) -> bool:
        """Wait for the server to close; false when it sends something first."""
        return self._received == b"" and self.socket.recv(1) == b""

    def _receive(self) -> None:
        data = self.socket.recv(1 << 16)
        assert data, f"closed by the server after {self._received!r}"
        self._received += data


def request(
    body: bytes = b"",
    path: bytes = b"/embed",
    *,
    method: bytes = b"POST",
    fields: bytes = JSON_TYPE,
    length: int | None = None,
    version: bytes = b"HTTP/1.1",
) -> bytes:
    """The bytes of a request; ``length`` is what it says of its body, by default the truth."""
    size = len(body) if length is None else length
    head = b"%b %b %b\r\nHost: test\r\n" % (method, path, version)
    return head + b"Content-Length: %d\r\n" % size + fields + b"\r\n" + body


def chunked(body: bytes, path: bytes = b"/embed", *, size: int = 65_536) -> bytes:
    """The bytes of a request whose body comes in chunks."""
    head = b"POST %b HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n" % path
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + JSON_TYPE + b"\r\n" + chunks + b"0\r\n\r\n"
