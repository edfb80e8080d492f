"""Lone requests: how long an idle server takes for one, and a wait until it is idle again.

A server may still work on requests whose client has gone. Before a load is timed, lone requests
must be about as fast as they were before any load: three of the last nine, so that a machine that
is busy now and then is told from a server that still works.
"""

import http.client
import json
import time
from collections import deque
from contextlib import closing
from statistics import median
from urllib.parse import urlsplit

from benchmarks.systems.running import NotMeasured, Running

SENTINEL = "A woman is reading a book on a train."
TOLERANCE = 1.25  # of the idle latency
SLACK_MS = 0.3
TIMEOUT_SECONDS = 60.0
PAUSE_SECONDS = 0.02
WARM_UPS, SAMPLES = 20, 40
FAST_PROBES, LAST_PROBES = 3, 9


class LoneClient:
    """Sends one text at a time over one connection that is kept open."""

    def __init__(self, running: Running, timeout: float) -> None:
        route = running.system.route
        if route is None:
            raise ValueError(f"{running.system.name} has no HTTP route.")
        self._path = urlsplit(running.url).path
        self._body = json.dumps(route.body([SENTINEL])).encode()
        host = urlsplit(running.origin).netloc
        self._connection = http.client.HTTPConnection(host, timeout=timeout)

    def time_ms(self, count: int) -> list[float]:
        """The latencies of ``count`` requests in ms, each after a pause.

        A core that has slept answers more slowly, so what is compared has the same pauses.
        Raises `NotMeasured` when one is not answered with 200 in time.
        """
        return [self._time_one() for _ in range(count)]

    def _time_one(self) -> float:
        time.sleep(PAUSE_SECONDS)
        started = time.perf_counter()
        try:
            headers = {"Content-Type": "application/json"}
            self._connection.request("POST", self._path, self._body, headers)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise NotMeasured(f"a lone request failed: {error!r}") from error
        if answer.status != 200:
            raise NotMeasured(f"a lone request was answered with {answer.status}.")
        return 1e3 * (time.perf_counter() - started)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def measure_idle_ms(running: Running) -> float:
    """The median latency of lone requests to a server that does nothing else."""
    with closing(LoneClient(running, TIMEOUT_SECONDS)) as client:
        client.time_ms(WARM_UPS)
        return median(client.time_ms(SAMPLES))


def wait_until_idle(
    running: Running, idle_ms: float, timeout_seconds: float = TIMEOUT_SECONDS
) -> float:
    """Wait until lone requests take about ``idle_ms`` again; returns the seconds waited.

    Raises `NotMeasured` when they are still slower after ``timeout_seconds``.
    """
    bound = idle_ms * TOLERANCE + SLACK_MS
    started = time.monotonic()
    last: deque[float] = deque(maxlen=LAST_PROBES)
    with closing(LoneClient(running, timeout_seconds)) as client:
        while True:
            last += client.time_ms(1)
            waited = time.monotonic() - started
            if sum(seen <= bound for seen in last) >= FAST_PROBES:
                return waited
            if waited > timeout_seconds:
                raise NotMeasured(
                    f"not idle again after {timeout_seconds:g} s: a lone request takes"
                    f" {median(last):.1f} ms, and took {idle_ms:.1f} ms before any load."
                )
