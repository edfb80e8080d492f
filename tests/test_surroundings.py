"""The surroundings of the process: a full disk, a jumping clock, a kill, an upgrade under load."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from s2sent.model.artifact.reader import Artifact
from tests.support.fake_engine import FakeEngine, client_of
from tests.support.server_process import ServerProcess, running_server

IN_EACH_FORM = pytest.mark.usefixtures("each_form")

EMBED = {"inputs": "a dog runs"}


@IN_EACH_FORM
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_the_log_stops_no_request(tiny_artifact: Artifact, port: int) -> None:
    command = [sys.executable, "-m", "s2sent.service", "serve", "--port", str(port)]
    command += ["--artifact", str(tiny_artifact.path), *ServerProcess.form]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(command, stdout=full, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            until_ready(client, process)
            for _ in range(50):  # each writes a line
                assert client.post("/embed", json=EMBED).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


async def test_a_clock_that_jumps_changes_no_duration_and_no_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wall clock is for log lines; everything that is measured or waited for is monotonic."""
    hour = 3600.0
    jumps = iter([hour, -24 * hour] * 1_000)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + next(jumps))
    async with client_of(FakeEngine(), request_timeout_seconds=5) as client:
        for _ in range(20):
            response = await client.post("/embed", json=EMBED)
            assert response.status_code == 200
            assert 0 <= int(response.headers["x-total-time"]) < 5_000


@IN_EACH_FORM
def test_a_killed_process_leaves_nothing_behind_that_the_next_one_minds(
    tiny_artifact: Artifact,
) -> None:
    vectors = []
    for _ in range(2):
        with running_server(tiny_artifact.path) as server:
            vectors.append(np.array(server.client.post("/embed", json=EMBED).json()))
            os.kill(server.process.pid, signal.SIGKILL)
            assert server.process.wait(30) == -signal.SIGKILL
    assert np.abs(vectors[0] - vectors[1]).max() <= 1e-6


@IN_EACH_FORM
def test_an_upgrade_under_load_loses_no_request(tiny_artifact: Artifact) -> None:
    """Clients that keep their connection, and try once more elsewhere, are all answered."""
    path = tiny_artifact.path
    with running_server(path) as new, running_server(path) as old:
        under_load = threading.Event()
        with ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(_send, old.url, new.url, under_load) for _ in range(4)]
            assert under_load.wait(30)
            assert old.stop() == 0, "an accepted request was given up"
        for client in clients:
            before, refused, after = client.result()
            assert set(before) <= {200}
            assert refused in (503, None)
            assert after == [200] * 5


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def until_ready(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            if client.get("/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        time.sleep(0.02)
    raise AssertionError(f"the server ended with {process.returncode}")


def _send(
    old: str, new: str, under_load: threading.Event
) -> tuple[list[int], int | None, list[int]]:
    """Statuses at the old server, its refusal (None: it closed the connection), and at the new."""
    before: list[int] = []
    refused = None
    with httpx.Client(trust_env=False, timeout=30) as client:
        embed = partial(client.post, json={"inputs": "a"})
        with suppress(httpx.TransportError):
            while (status := embed(f"{old}/embed").status_code) == 200:
                before.append(status)
                under_load.set()
            refused = status
        return before, refused, [embed(f"{new}/embed").status_code for _ in range(5)]
