"""The open-loop generator sends at the intended times and follows every answer."""

import json
import os
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from benchmarks.load import open_loop
from benchmarks.load.open_loop import GeneratorFailed, Request, Sent, schedule, summarise
from tests.support.scripted_http import Scene, Server
from tests.support.serving import serving


def need_compiler() -> None:
    if not shutil.which("cc"):
        pytest.skip("The load generator is in C: it needs a compiler, cc.")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    need_compiler()
    with serving(Server(getattr(request, "param", 1))) as server:
        yield server


def send(url: str, times: Sequence[float], *bodies: int | str, drain_seconds: float = 30) -> Sent:
    need_compiler()
    return open_loop.send(url, [json.dumps(body).encode() for body in bodies], times, drain_seconds)


@contextmanager
def playing(play: Callable[[Scene], None], backlog: int = 16) -> Iterator[str]:
    """The URL of a server that plays one scene."""
    need_compiler()
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener:
        listener.settimeout(10)

        def run() -> None:
            with Scene(listener) as scene:
                play(scene)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/embed"
        thread.join(30)


def test_a_schedule_is_a_poisson_process_of_its_rate() -> None:
    times = schedule(1000, 10, seed=1)
    gaps = np.diff(times)
    assert times == sorted(times) == schedule(1000, 10, seed=1) != schedule(1000, 10, seed=2)
    assert times[-1] < 10
    assert len(times) == pytest.approx(10_000, rel=0.05)  # five standard deviations
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)


def test_requests_never_leave_early_and_all_are_answered(server: Server) -> None:
    times = schedule(200, 0.5, seed=0)
    sent = send(server.url, times, 200)
    assert [r.intended for r in sent.requests] == pytest.approx(times)
    assert all(r.intended <= r.sent < r.answered for r in sent.requests)
    assert {r.status for r in sent.requests} == {200}
    assert 0 < sent.cpu_seconds < 0.5


def test_latency_counts_from_the_intended_time(server: Server) -> None:
    """A request that was due two seconds before it could be sent took two seconds at least."""
    figures = summarise(send(server.url, [-2.0], 200).requests, 1)
    assert figures["p50_ms"] >= 2000
    assert figures["lateness_p50_ms"] >= 2000


@pytest.mark.parametrize("server", [5], indirect=True)
def test_busy_connections_are_joined_by_new_ones(server: Server) -> None:
    """The server answers only when five requests have come."""
    sent = send(server.url, [0.0] * 5, "wait")
    assert [r.status for r in sent.requests] == [200] * 5
    assert sent.connections == 5


def test_an_idle_connection_is_used_again(server: Server) -> None:
    sent = send(server.url, [0.0, 0.3, 0.6], 200)
    assert [r.status for r in sent.requests] == [200] * 3
    assert sent.connections == 1


def test_a_connection_that_was_idle_for_two_seconds_is_not_used_again(server: Server) -> None:
    sent = send(server.url, [0.0, 2.2], 200)
    assert [r.status for r in sent.requests] == [200] * 2
    assert sent.connections == 2


def test_a_body_that_does_not_go_out_at_once_is_sent_whole(server: Server) -> None:
    sent = send(server.url, [0.0, 0.0], "x" * 10_000_000)
    assert [r.status for r in sent.requests] == [200] * 2


def test_refused_failed_and_lost_requests_are_counted_apart(server: Server) -> None:
    sent = send(server.url, [0.0, 0.1, 0.2, 0.3], 200, 429, 500, "lose")
    figures = summarise(sent.requests, 1)
    names = ("sent", "good", "refused", "failed", "lost")
    assert [figures[name] for name in names] == [4, 1, 1, 1, 1]
    assert figures["goodput_per_second"] == 1
    assert figures["refusal_p99_ms"] > 0


@pytest.mark.parametrize("server", [2], indirect=True)
def test_what_is_not_answered_in_time_is_lost(server: Server) -> None:
    sent = send(server.url, [0.0, 0.1], "wait", 200, drain_seconds=0.5)
    assert [r.status for r in sent.requests] == [0, 200]
    server.barrier.abort()


def test_an_answer_may_come_in_any_pieces() -> None:
    def play(scene: Scene) -> None:
        connection = scene.accept()
        for _ in range(2):
            scene.read(connection)
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length:  30\r\n\r\n" + b"\r\n\r" * 10:
                connection.sendall(bytes([byte]))

    with playing(play) as url:
        sent = send(url, [0.0, 0.2], "a")
    assert [r.status for r in sent.requests] == [200] * 2
    assert sent.connections == 1


def test_a_long_answer_is_complete_with_its_last_byte() -> None:
    def play(scene: Scene) -> None:
        connection = scene.accept()
        scene.read(connection)
        body = b"x" * 2_000_000
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2000000\r\n\r\n" + body[:-1])
        time.sleep(0.2)
        connection.sendall(body[-1:])

    with playing(play) as url:
        (request,) = send(url, [0.0], "a").requests
    assert request.status == 200
    assert request.answered > 0.2


def test_answers_may_come_in_any_order() -> None:
    def play(scene: Scene) -> None:
        connections = [scene.accept() for _ in range(3)]
        statuses = [int(scene.read(connection)) for connection in connections]
        for connection, status in reversed(list(zip(connections, statuses, strict=True))):
            scene.answer(connection, status)
            time.sleep(0.02)

    with playing(play) as url:
        requests = send(url, [0.0, 0.1, 0.2], "200", "429", "503").requests
    assert [r.status for r in requests] == [200, 429, 503]
    assert requests[0].answered > requests[1].answered > requests[2].answered > 0.2


def test_statuses_are_those_of_the_answers_with_a_body_or_without() -> None:
    def play(scene: Scene) -> None:
        connection = scene.accept()
        scene.read(connection)
        connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
        scene.read(connection)
        scene.answer(connection, 429)

    with playing(play) as url:
        sent = send(url, [0.0, 0.1], "a")
    assert [r.status for r in sent.requests] == [204, 429]
    assert sent.connections == 1
    figures = summarise(sent.requests, 1)
    assert (figures["failed"], figures["refused"]) == (1, 1)


def test_a_connection_that_will_be_closed_is_not_used_again() -> None:
    """The server says so, and keeps it open for now."""

    def play(scene: Scene) -> None:
        for extra in ("Connection: close\r\n", "CONNECTION:close\r\n", ""):
            connection = scene.accept()
            scene.read(connection)
            scene.answer(connection, extra=extra)

    with playing(play) as url:
        sent = send(url, [0.0, 0.1, 0.2], "a")
    assert [r.status for r in sent.requests] == [200] * 3
    assert sent.connections == 3


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n",
        b"not HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 10_000,
    ],
    ids=["nothing", "half a head", "half a body", "chunks", "not HTTP", "an endless head"],
)
def test_without_a_whole_answer_a_request_is_lost_and_the_next_is_not(begun: bytes) -> None:
    def play(scene: Scene) -> None:
        connection = scene.accept()
        scene.read(connection)
        connection.sendall(begun)
        time.sleep(0.1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()  # with a reset
        connection = scene.accept()
        scene.read(connection)
        scene.answer(connection)

    with playing(play) as url:
        sent = send(url, [0.0, 0.3], "a")
    assert [r.status for r in sent.requests] == [0, 200]
    assert sent.connections == 2


def test_no_times_need_no_requests(server: Server) -> None:
    assert send(server.url, [], 200).requests == []


def test_a_server_that_refuses_connections_loses_the_requests() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/embed"
    assert [r.status for r in send(url, [0.0, 0.1], "a").requests] == [0, 0]


def test_a_server_that_is_slow_to_accept_delays_no_other_request() -> None:
    """Its backlog takes two; the others' connections are made when it accepts, a second later."""

    def play(scene: Scene) -> None:
        time.sleep(0.5)
        for _ in range(6):
            connection = scene.accept()
            scene.read(connection)
            scene.answer(connection)

    with playing(play, backlog=1) as url:
        requests = send(url, [number / 100 for number in range(6)], "a").requests
    assert [r.status for r in requests] == [200] * 6
    assert max(r.sent - r.intended for r in requests) < 0.4
    assert min(r.answered for r in requests) >= 0.4


def test_the_command_prints_its_figures(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bodies = tmp_path / "bodies"
    bodies.write_text("200\n429\n")
    arguments = ["open_loop", server.url, str(bodies), "--rate=100", "--seconds=0.3"]
    monkeypatch.setattr(sys, "argv", arguments)
    open_loop.main()
    figures = json.loads(capsys.readouterr().out)
    assert figures["good"] + figures["refused"] == figures["sent"] > 0
    assert figures["rate"] == 100
    assert figures["connections"] >= 1
    assert figures["generator_cpu_seconds"] > 0
    assert figures["generator_nice"] in (os.nice(0), os.nice(0) - 10)
    assert {"p99_ms", "refusal_p99_ms", "lateness_p99_ms"} < figures.keys()


@pytest.mark.parametrize(
    ("bodies", "times", "reason"),
    [
        ([], [0.0], "number of messages must be"),
        (["a"], [0.2, 0.1], "time of a request must be"),
    ],
)
def test_what_cannot_be_sent_is_refused(bodies: list[str], times: list[float], reason: str) -> None:
    with pytest.raises(GeneratorFailed, match=reason):
        send("http://127.0.0.1:9/", times, *bodies)


def test_without_a_compiler_the_generator_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_loop, "PROGRAM", tmp_path / "open_loop")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GeneratorFailed, match="cc, a C compiler, is not installed"):
        open_loop.build_generator()


def test_the_generator_is_compiled_again_when_its_source_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "cache/open_loop"
    monkeypatch.setattr(open_loop, "PROGRAM", program)
    monkeypatch.setattr(open_loop, "COMPILE", (sys.executable, "-c", COMPILER))
    assert open_loop.build_generator() == program
    program.write_text("kept")
    assert open_loop.build_generator().read_text() == "kept"
    os.utime(program, (0, 0))
    assert open_loop.build_generator().read_text() == "compiled"
    assert list(program.parent.iterdir()) == [program]


COMPILER = "import sys; open(sys.argv[sys.argv.index('-o') + 1], 'w').write('compiled')"


def test_goodput_counts_what_came_while_the_load_lasted() -> None:
    requests = [Request(0.1, 0.1, answered, 200) for answered in (0.5, 1.5, 2.5)]
    assert summarise(requests, 2)["goodput_per_second"] == 1
    assert summarise(requests, 2)["p50_ms"] == pytest.approx(1400)
