"""How long one large body holds up a small request: /health beside bodies of 8 MB.

    python -m tests.fuzz.stall [--artifact FOLDER] [--rounds 3]

For every body: its status, and the slowest /health while it was read and answered.
"""

import argparse
import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from s2sent.service.settings import DEFAULT_ARTIFACT
from tests.support.server_process import running_server

LIMIT = 8_388_608
SENTENCE = "A man is playing a guitar in the street. "


def many(item: str, *, before: str = '{"inputs":[', after: str = "]}") -> bytes:
    """As many items as the limit of a body holds."""
    count = (LIMIT - len(before) - len(after)) // (len(item.encode()) + 1)
    return (before + ",".join(itertools.repeat(item, count)) + after).encode()


def _texts(count: int, characters: int) -> bytes:
    text = (SENTENCE * (characters // len(SENTENCE) + 1))[:characters]
    return json.dumps({"inputs": [text] * count}).encode()


def _ids(count: int, length: int) -> bytes:
    ids = [1000 + index % 20_000 for index in range(length)]
    return json.dumps({"inputs": [ids] * count}, separators=(",", ":")).encode()


# What a body holds, the route it is for, and the body.
BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "64 texts of 4,000 characters": ("/embed", lambda: _texts(64, 4000)),
    "2048 texts of 4,000 characters": ("/embed", lambda: _texts(2048, 4000)),
    "2048 lists of 500 ids": ("/embed", lambda: _ids(2048, 500)),
    "one list of 1,000,000 ids": ("/embed", lambda: _ids(1, 1_000_000)),
    "one text of 8 MB": ("/embed", lambda: _texts(1, 8_388_000)),
    "one text of escapes": ("/embed", lambda: b'{"inputs":"' + b'\\"' * 4_194_000 + b'"}'),
    "one text of brackets": ("/embed", lambda: b'{"inputs":"' + b"[" * 8_388_000 + b'"}'),
    "lists of one id": ("/embed", lambda: many("[1]")),
    "empty lists": ("/embed", lambda: many("[]")),
    "empty objects": ("/embed", lambda: many("{}")),
    "one id each": ("/embed", lambda: many("1")),
    "texts of one character": ("/embed", lambda: many('"a"')),
    "texts for /similarity": (
        "/similarity",
        lambda: many('"a"', before='{"inputs":{"source_sentence":"a","sentences":[', after="]}}"),
    ),
    "pairs for /similarity": (
        "/similarity",
        lambda: many('["a","b"]', before='{"inputs":{"pairs":[', after="]}}"),
    ),
    "texts for /v1/embeddings": ("/v1/embeddings", lambda: many('"a"', before='{"input":[')),
    "lists of ids for /decode": ("/decode", lambda: many("[1]", before='{"ids":[')),
    "a field that is ignored": (
        "/embed",
        lambda: many("[[]]", before='{"inputs":"a","other":['),
    ),
    "fields that are ignored": (
        "/embed",
        lambda: ('{"inputs":"a"' + "".join(f',"{n:07}":1' for n in range(690_000)) + "}").encode(),
    ),
}


class Pulse:
    """Asks for /health all the time, in a thread of its own; ``slowest`` in seconds."""

    def __init__(self, address: str) -> None:
        self.slowest = 0.0
        self._connection = http.client.HTTPConnection(address)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def __enter__(self) -> "Pulse":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()

    def _beat(self) -> None:
        while not self._stop.wait(0.002):
            began = time.perf_counter()
            self._connection.request("GET", "/health")
            self._connection.getresponse().read()
            self.slowest = max(self.slowest, time.perf_counter() - began)


def _post(address: str, path: str, body: bytes) -> tuple[int, float]:
    connection = http.client.HTTPConnection(address, timeout=120)
    began = time.perf_counter()
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, time.perf_counter() - began


def _rows(address: str, rounds: int) -> Iterator[str]:
    for name, (path, make) in BODIES.items():
        body, slowest, status, seconds = make(), [], 0, 0.0
        for _ in range(rounds):
            with Pulse(address) as pulse:
                status, seconds = _post(address, path, body)
            slowest.append(f"{pulse.slowest * 1000:.0f}")
        size, times = len(body) / 1e6, ", ".join(slowest)
        yield f"| {name} | {size:.1f} | {status} | {seconds:.2f} | {times} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("| body | MB | status | seconds | slowest /health, ms |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with running_server(arguments.artifact) as server:
        with Pulse(urlsplit(server.url).netloc) as idle:
            time.sleep(1)
        print(f"| none, for a second | | | | {idle.slowest * 1000:.0f} |")
        for row in _rows(urlsplit(server.url).netloc, arguments.rounds):
            print(row, flush=True)


if __name__ == "__main__":
    main()
