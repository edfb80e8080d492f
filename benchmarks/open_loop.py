"""Open-loop load: requests leave at their intended times, whatever the server does meanwhile.

    python -m benchmarks.open_loop URL BODIES --rate R --seconds S [--seed N]

Arrivals are exponential with a seed, and a latency counts from the time a request was meant to
leave, so a server that falls behind cannot hide it. Two threads: one sleeps until each intended
time and sends on an idle connection, or on a new one when all are busy; the other waits for
answers. Plain sockets, because the timers of asyncio's loops count whole milliseconds.

It cannot do TLS, chunked answers, pipelining or more connections than files may be open. How late
it sent is part of its report, and so is the processor time it took from a server on the same
machine.
"""

import argparse
import json
import os
import random
import re
import resource
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.loads import summarise_ms

DRAIN_SECONDS = 60
# Servers close what has been idle for a few seconds; a request must not cross that.
MAX_IDLE_SECONDS = 2
POLL_SECONDS = 0.05
REFUSED = (429, 503)

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)


@dataclass
class Request:
    """One arrival, its times in seconds of one clock, and the status of its answer; 0 for none."""

    intended: float
    sent: float = 0.0
    answered: float = 0.0
    status: int = 0


@dataclass
class Connection:
    """A keep-alive connection with at most one request on its way."""

    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    request: Request | None = None
    idle_since: float = 0.0
    closed: bool = False


def schedule(rate: float, seconds: float, seed: int) -> list[float]:
    """The intended times of a Poisson process of ``rate`` per second, from 0 to ``seconds``."""
    choose = random.Random(seed)  # noqa: S311  a reproducible load, not a secret
    times = []
    now = choose.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += choose.expovariate(rate)
    return times


class Generator:
    """Sends bodies to a URL at given times and keeps what became of each request."""

    def __init__(self, url: str, bodies: Sequence[bytes]) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        head += "Content-Type: application/json\r\nContent-Length: "
        self._messages = [b"%b%d\r\n\r\n%b" % (head.encode(), len(b), b) for b in bodies]
        self._idle: deque[Connection] = deque()  # appended by one thread, popped by the other
        self._connections: dict[int, Connection] = {}
        self._epoll = select.epoll()
        self._stop = threading.Event()
        self.connections_opened = 0

    def run(self, times: Sequence[float], drain_seconds: float = DRAIN_SECONDS) -> list[Request]:
        """Send at ``times``, then wait for answers so long; unanswered requests have status 0.

        All times of the requests are relative to the start.
        """
        receiver = threading.Thread(target=self._receive_answers)
        receiver.start()
        start = time.perf_counter()
        requests = [Request(start + offset) for offset in times]
        try:
            for index, request in enumerate(requests):
                time.sleep(max(0.0, request.intended - time.perf_counter()))
                self._send(request, self._messages[index % len(self._messages)])
            deadline = time.perf_counter() + drain_seconds
            while self._are_any_waiting() and time.perf_counter() < deadline:
                time.sleep(POLL_SECONDS)
        finally:
            self._stop.set()
            receiver.join()
            self._close_all()
        return [
            Request(r.intended - start, r.sent - start, r.answered - start, r.status)
            for r in requests
        ]

    def _send(self, request: Request, message: bytes) -> None:
        connection = self._take_connection()
        connection.request = request
        request.sent = time.perf_counter()
        try:
            connection.socket.sendall(message)
        except OSError:  # the receiver sees the end of the connection too
            connection.request = None

    def _take_connection(self) -> Connection:
        """The idle connection that was used last, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and time.perf_counter() - connection.idle_since < (
                MAX_IDLE_SECONDS
            ):
                return connection
        connection = Connection(socket.create_connection(self._address))
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[connection.socket.fileno()] = connection
        self._epoll.register(connection.socket, select.EPOLLIN)
        self.connections_opened += 1
        return connection

    def _are_any_waiting(self) -> bool:
        return any(connection.request for connection in list(self._connections.values()))

    def _receive_answers(self) -> None:
        while not self._stop.is_set():
            for descriptor, _ in self._epoll.poll(POLL_SECONDS):
                self._receive(self._connections[descriptor])

    def _receive(self, connection: Connection) -> None:
        try:
            data = connection.socket.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        connection.received += data
        answer = connection.received
        end = answer.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(answer, 0, end)
        if end < 4 or length is None or len(answer) < end + int(length[1]):
            return
        if connection.request:
            connection.request.answered = time.perf_counter()
            connection.request.status = int(answer[9:12])
        connection.request = None
        is_last = _CLOSE.search(answer, 0, end)
        connection.received.clear()
        connection.idle_since = time.perf_counter()
        if is_last:
            self._close(connection)
        else:
            self._idle.append(connection)

    def _close(self, connection: Connection) -> None:
        connection.closed = True
        connection.request = None
        del self._connections[connection.socket.fileno()]
        self._epoll.unregister(connection.socket)
        connection.socket.close()

    def _close_all(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection)
        self._epoll.close()


def summarise(requests: Sequence[Request], seconds: float) -> dict[str, float]:
    """What a load of ``seconds`` came to.

    ``goodput_per_second`` counts the answers that were good and came while the load lasted; the
    latencies are those of all good answers. ``lost`` requests got no answer at all.
    """
    good = [r for r in requests if r.status == 200]
    refused = [r for r in requests if r.status in REFUSED]
    lost = sum(r.status == 0 for r in requests)
    refusal = summarise_ms([r.answered - r.intended for r in refused])
    lateness = summarise_ms([r.sent - r.intended for r in requests])
    return {
        "seconds": seconds,
        "sent": len(requests),
        "good": len(good),
        "refused": len(refused),
        "failed": len(requests) - len(good) - len(refused) - lost,
        "lost": lost,
        "goodput_per_second": sum(r.answered <= seconds for r in good) / seconds,
        **summarise_ms([r.answered - r.intended for r in good]),
        **{f"refusal_{name}": value for name, value in refusal.items()},
        **{f"lateness_{name}": value for name, value in lateness.items()},
    }


def _go_first() -> int:
    """Ask for a higher priority, so that a busy server does not delay the clock that judges it."""
    try:
        return os.nice(-10)
    except PermissionError:
        return os.nice(0)


def main() -> None:
    """Send one load and print its figures as one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("url")
    parser.add_argument("bodies", type=Path, help="one JSON document a line")
    parser.add_argument("--rate", type=float, required=True, help="requests a second")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    nice = _go_first()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    generator = Generator(arguments.url, arguments.bodies.read_bytes().splitlines())
    times = schedule(arguments.rate, arguments.seconds, arguments.seed)
    before = time.process_time()
    requests = generator.run(times)
    used = time.process_time() - before
    figures = summarise(requests, arguments.seconds) | {
        "rate": arguments.rate,
        "connections": generator.connections_opened,
        "generator_cpu_seconds": used,
        "generator_nice": nice,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
