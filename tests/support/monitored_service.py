"""Two real servers under a mixed load, watched by a real Prometheus.

``python -m tests.support.monitored_service [ARTIFACT]`` prints every panel's query with what it
returned:
the table in deploy/grafana/PANELS.md.
"""

import math
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from s2sent.service.settings import DEFAULT_ARTIFACT
from tests.support.monitoring import Query, in_table, panel_queries
from tests.support.prometheus_process import Prometheus, running_prometheus
from tests.support.server_process import ServerProcess, running_server

# One server with room, and one that has hardly any: it refuses and is out of time.
ROOMY = ("--threads", "1", "--max-client-batch-size", "1000", "--http-processes", "2")
CRAMPED = (
    *("--threads", "1", "--max-concurrent-requests", "3", "--request-timeout-seconds", "0.1"),
    *("--max-batch-tokens", "1024", "--max-queue-tokens", "1024"),
)
TEXT = "two happy dogs read old books in the red house by the river " * 2
BULK, SOME = [TEXT] * 900, [TEXT] * 30
LONG = "the old man plays guitar " * 200  # longer than any model's limit: it is cut

# What must have been counted before the panels are looked at.
EXPECTED = {
    "sum by (status) (s2sent_requests_total) > 0": ("status", "200 400 404 413 422 429 499 504"),
    "sum by (reason) (s2sent_requests_rejected_total) > 0": ("reason", "queue_full concurrency"),
}
SCRAPES = 6  # of each server, so that a rate over five seconds has its samples
PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Result:
    """What Prometheus answered to a query over the whole run."""

    query: Query
    series: int
    numbers: tuple[float, ...]  # the latest of each series that is a number

    @property
    def has_data(self) -> bool:
        """Whether there is a number in it."""
        return bool(self.numbers)


@contextmanager
def monitored_service(artifact: Path, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that has seen every kind of answer."""
    with ExitStack() as stack:
        roomy = stack.enter_context(running_server(artifact, *ROOMY))
        cramped = stack.enter_context(running_server(artifact, *CRAMPED))
        targets = [server.url.removeprefix("http://") for server in (roomy, cramped)]
        prometheus = stack.enter_context(running_prometheus(folder, targets))
        with _load(roomy, cramped):
            _wait_until_seen(prometheus)
        yield prometheus


def ask(prometheus: Prometheus, query: Query) -> Result:
    """Run one query over the whole run."""
    series = prometheus.query_range(query.expr)
    numbers = [
        [float(value) for _, value in one["values"] if not math.isnan(float(value))]
        for one in series
    ]
    return Result(query, len(series), tuple(values[-1] for values in numbers if values))


def as_table(results: list[Result]) -> str:
    """The results in Markdown, a line for each query."""
    lines = ["| panel | query | series | latest values |", "| --- | --- | --- | --- |"]
    for result in results:
        query = f"{result.query} | `{in_table(result.query.expr)}`"
        lines.append(f"| {query} | {result.series} | {_shown(result.numbers)} |")
    return "\n".join(lines)


def _shown(numbers: tuple[float, ...]) -> str:
    if not numbers:
        return "none"
    low, high = f"{min(numbers):.4g}", f"{max(numbers):.4g}"
    return low if low == high else f"{low} to {high}"


@contextmanager
def _load(roomy: ServerProcess, cramped: ServerProcess) -> Iterator[None]:
    """Clients that repeat their requests until the block ends."""
    stop = threading.Event()
    jobs: list[tuple[Callable[[httpx.Client], None], str]] = [
        (_good_and_bad, roomy.url),
        (_leave, roomy.url),
        *[(_send_bulk, cramped.url)] * 3,
        *[(_send_some, cramped.url)] * 3,
    ]
    threads = [threading.Thread(target=_repeat, args=(*job, stop)) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)


def _repeat(job: Callable[[httpx.Client], None], url: str, stop: threading.Event) -> None:
    with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_SECONDS) as client:
        while not stop.wait(0.05):
            job(client)


def _good_and_bad(client: httpx.Client) -> None:
    """Every route that embeds, then one request for each mistake a client can make."""
    client.post("/embed", json={"inputs": ["a dog reads", LONG, "the cat sings in the street"]})
    client.post("/v1/embeddings", json={"model": "m", "input": "two old trees"})
    pairs = {"source_sentence": "a dog", "sentences": ["a cat", "the river"]}
    client.post("/similarity", json={"inputs": pairs})
    client.post("/embed", content=b"no json", headers={"Content-Type": "application/json"})
    client.post("/embed", json={"inputs": 7})
    client.post("/embed", json={"inputs": ["a"] * 1001})
    client.get("/nowhere")


def _send_bulk(client: httpx.Client) -> None:
    client.post("/embed", json={"inputs": BULK})


def _send_some(client: httpx.Client) -> None:
    client.post("/embed", json={"inputs": SOME})


def _leave(client: httpx.Client) -> None:
    """Send a large request and go away."""
    request = client.build_request("POST", "/embed", json={"inputs": BULK})
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection((request.url.host, request.url.port or 80)) as connection:
        connection.sendall(f"POST /embed HTTP/1.1\r\n{head}\r\n".encode() + request.content)
        time.sleep(0.02)  # long enough to be taken, too short for an answer


def _wait_until_seen(prometheus: Prometheus) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while missing := _missing(prometheus):
        assert time.monotonic() < deadline, f"not seen in time: {missing}"
        time.sleep(0.2)


def _missing(prometheus: Prometheus) -> list[str]:
    scrapes = prometheus.values('count_over_time(up{job="s2sent"}[5m])')
    missing = [] if len(scrapes) == 2 and min(scrapes) >= SCRAPES else [f"scrapes: {scrapes}"]
    for expr, (label, wanted) in EXPECTED.items():
        seen = {series["metric"].get(label) for series in prometheus.query_range(expr)}
        missing += [f"{label} {value}" for value in wanted.split() if value not in seen]
    return missing


def main(artifact: Path) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        with monitored_service(artifact, Path(folder)) as prometheus:
            results = [ask(prometheus, query) for query in panel_queries()]
        sys.stdout.write(f"{as_table(results)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_ARTIFACT)
