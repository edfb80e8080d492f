"""Several HTTP processes before one engine: what they promise together, and when one ends."""

import hashlib
import itertools
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.service.api.exposition import FRESH_SECONDS
from tests.support.server_process import LOCAL, ServerProcess, running_server

PATIENCE_SECONDS = 60  # a test that waits this long has failed
SEVERAL = ("--http-processes", "2")
QUIET = ("--no-log-requests",)


def until(condition: Callable[[], Any], what: str = "it") -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come to be"
        time.sleep(0.02)


def children(server: ServerProcess) -> list[psutil.Process]:
    """The HTTP processes, in the order of their names."""
    found = psutil.Process(server.process.pid).children()
    return sorted(found, key=lambda child: child.cmdline()[4:5])


def let_age() -> None:
    """Wait until no process answers a scrape with what it answered before."""
    time.sleep(FRESH_SECONDS + 0.05)


def value(server: ServerProcess, name: str, **labels: str) -> float:
    """The sum of a metric's series that have these labels, at most FRESH_SECONDS ago."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    lines = server.client.get("/metrics").text.splitlines()
    series = [line for line in lines if line.startswith((f"s2sent_{name} ", f"s2sent_{name}{{"))]
    assert series, name
    return sum(float(s.rsplit(" ", 1)[1]) for s in series if all(w in s for w in wanted))


def said(server: ServerProcess, words: str) -> int:
    """How many lines of the log have these words."""
    return sum(words in line["message"] for line in [*server.log])


def is_ready(server: ServerProcess) -> bool:
    """Whether every part is there, asked on a connection of its own."""
    try:
        return httpx.get(f"{server.url}/ready", **LOCAL).status_code == 200
    except httpx.TransportError:
        return False


class Load:
    """Clients that ask one after the other until told to stop; ``answers`` has what each got."""

    def __init__(self, url: str, clients: int, texts: int = 2) -> None:
        self.answers: Counter[int | str] = Counter()
        self._url = url
        self._texts = texts
        self._numbers = itertools.count()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, **LOCAL, timeout=PATIENCE_SECONDS) as client:
            while not self._stopped.is_set():
                inputs = [f"text {next(self._numbers)}" for _ in range(self._texts)]
                try:
                    self.answers[client.post("/embed", json={"inputs": inputs}).status_code] += 1
                except httpx.ConnectError:
                    self.answers["refused"] += 1
                    time.sleep(0.01)
                except httpx.TransportError:
                    self.answers["lost"] += 1


@pytest.fixture(scope="module")
def server(tiny_artifact: Artifact) -> Iterator[ServerProcess]:
    with running_server(tiny_artifact.path, *SEVERAL, *QUIET) as server:
        yield server


# --- together ---


def test_every_route_answers_as_one_process_does(
    tiny_artifact: Artifact, server: ServerProcess
) -> None:
    """To the byte, hence every vector to the bit; from each of the processes."""
    texts = ["A man is playing a guitar.", "Someone plays music.", "word " * 200]
    asked: list[tuple[str, Any]] = [
        ("/embed", {"inputs": texts[0]}),
        ("/embed", {"inputs": texts, "dimensions": 7, "normalize": False}),
        ("/embed", {"inputs": texts, "encoding_format": "base64"}),
        ("/embed", {"inputs": ["", *texts], "on_error": "null"}),
        ("/embed", {"inputs": texts, "long_texts": "mean"}),
        ("/embed", {"inputs": texts, "truncate": False}),
        ("/embed", {"inputs": [[5, 6, 7], [99_999_999]]}),
        ("/similarity", {"inputs": {"source_sentence": texts[0], "sentences": texts[1:]}}),
        ("/v1/embeddings", {"input": texts, "model": "any"}),
        ("/tokenize", {"inputs": texts}),
        ("/decode", {"ids": [[5, 6, 7]]}),
        ("/explain", {"inputs": texts[:2]}),
        ("/info", None), ("/ready", None), ("/health", None), ("/", None), ("/docs", None),
        ("/openapi.json", None), ("/nowhere", None),
    ]  # fmt: skip
    with running_server(tiny_artifact.path, *QUIET) as alone:
        for path, body in asked:
            expected = ask(alone.url, path, body)
            for _ in range(6):  # each on a connection of its own
                assert ask(server.url, path, body) == expected, path


def ask(url: str, path: str, body: Any) -> tuple[int, bytes]:
    method = "GET" if body is None else "POST"
    answer = httpx.request(method, f"{url}{path}", json=body, **LOCAL)
    return answer.status_code, answer.content


def test_connections_are_spread(server: ServerProcess) -> None:
    """Of 128 connections that stay open neither of two processes has more than three quarters."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=server.url, **LOCAL)) for _ in range(128)
        ]
        before = by_process(server)
        for client in clients:
            assert client.get("/health").status_code == 200
        let_age()
        after = by_process(server)
    gained = [after[name] - before[name] for name in after]
    assert max(gained) <= 96 + 2, gained  # 2: the scrapes


def by_process(server: ServerProcess) -> dict[str, float]:
    names = ("http-1", "http-2")
    return {name: value(server, "process_requests_total", process=name) for name in names}


def test_counters_are_what_clients_got(server: ServerProcess) -> None:
    """After a storm, to the unit; asked of any process."""
    before = {status: counted(server, status) for status in (200, 413, 422)}
    texts = value(server, "texts_total")
    with Load(server.url, 12) as load:
        until(lambda: load.answers[200] >= 600)
    for _ in range(40):
        ask(server.url, "/embed", {"inputs": 7})
    assert set(load.answers) == {200}
    let_age()
    for _ in range(6):
        assert counted(server, 200) - before[200] == load.answers[200]
        assert counted(server, 422) - before[422] == 40
        assert value(server, "texts_total") - texts == 2 * load.answers[200]


def counted(server: ServerProcess, status: int) -> float:
    return value(server, "requests_total", route="/embed", status=str(status))


def test_openmetrics_is_for_those_who_ask(server: ServerProcess) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = server.client.get("/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    for text in (answer.text, server.client.get("/metrics").text):
        families = [line for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(families) == len({line.split()[2] for line in families})
        assert "s2sent_engine_ready 1.0" in text
        assert text.count("s2sent_model_info{") == 1


def sent_with_a_key(
    server: ServerProcess, key: str, texts: str, count: int
) -> tuple[list[httpx.Response], float]:
    """Requests one after the other, each on a connection of its own; and the minutes they took."""
    began = time.monotonic()
    headers = {"Authorization": f"Bearer {key}"}
    answers = [
        httpx.post(f"{server.url}/embed", json={"inputs": texts}, headers=headers, **LOCAL)
        for _ in range(count)
    ]
    return answers, (time.monotonic() - began) / 60


def test_the_limits_of_a_key_are_those_of_all_processes_together(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    """Of requests and of tokens, each with a key of its own."""
    lines = [
        f"{limit} {hashlib.sha256(limit.encode()).hexdigest()} {limit}_per_minute={most}\n"
        for limit, most in (("requests", 6), ("tokens", 100))
    ]
    (tmp_path / "keys").write_text("".join(lines))
    flags = (*SEVERAL, *QUIET, "--api-keys-file", str(tmp_path / "keys"))
    with running_server(tiny_artifact.path, *flags) as server:
        answers, minutes = sent_with_a_key(server, "requests", "a", 20)
        let_age()
        refused = value(server, "requests_rejected_total", reason="quota")
        charged, longer = sent_with_a_key(server, "tokens", "a b c " * 12, 12)
    statuses = Counter(answer.status_code for answer in answers)
    assert [answer.status_code for answer in answers[:6]] == [200] * 6
    assert statuses[200] <= 6 + 6 * minutes  # what comes back meanwhile
    assert statuses[429] == 20 - statuses[200] == refused
    waits = {int(one.headers["retry-after"]) for one in answers if one.status_code == 429}
    assert waits <= set(range(1, 11))
    taken = [int(one.headers["x-compute-tokens"]) for one in charged if one.status_code == 200]
    assert taken
    assert sum(taken[:-1]) < 100 * (1 + longer)  # the last one may go below zero
    assert len(taken) < 12


def test_log_lines_are_whole_and_name_their_process(tiny_artifact: Artifact) -> None:
    with running_server(tiny_artifact.path, *SEVERAL) as server:
        with Load(server.url, 16) as load:
            until(lambda: load.answers[200] >= 300)
        assert server.stop() == 0
    lines = [line for line in server.log if line["message"] == "request"]
    statuses = Counter(line["status"] for line in lines if line["route"] == "/embed")
    assert statuses == load.answers
    assert {line["process"] for line in lines} == {"http-1", "http-2"}  # spread by chance
    ready = [line for line in server.log if line["message"] == "ready"]
    assert sorted(line["process"] for line in ready) == ["engine", "http-1", "http-2"]
    assert all(line.get("level") for line in server.log), server.log
    assert server.log[-1]["message"] == "stopped"
    assert server.log[-1]["exit_code"] == 0


@pytest.mark.parametrize("form", [(), SEVERAL], ids=["one-process", "http-processes"])
def test_a_warning_is_logged_once(tiny_artifact: Artifact, form: tuple[str, ...]) -> None:
    server = ServerProcess(tiny_artifact.path, *form, variables={"S2SENT_API_KEYS": ""})
    try:
        server.wait_until_ready()
        assert len(server.client.get("/info").json()["warnings"]) == 1
    finally:
        server.client.close()
        assert server.stop() == 0
        assert server.process.stdout
        server.process.stdout.close()
    (warning,) = [line for line in server.log if line["level"] == "warning"]
    assert "S2SENT_API_KEYS is empty" in warning["message"]


# --- when one ends ---


def test_a_killed_http_process_costs_its_own_connections_and_comes_back(
    server: ServerProcess,
) -> None:
    let_age()
    before = {name: value(server, f"{name}_restarts_total") for name in ("http", "engine")}
    restarts = said(server, "started again")
    with Load(server.url, 12) as load:
        until(lambda: load.answers[200] >= 100)
        children(server)[1].kill()
        until(lambda: said(server, "started again") > restarts)
        until(lambda: is_ready(server))
        counted = load.answers[200]
        until(lambda: load.answers[200] >= counted + 100)
    assert set(load.answers) <= {200, "lost"}, load.answers
    assert load.answers["lost"] <= 12  # one request a connection
    assert len(children(server)) == 2
    let_age()
    assert value(server, "http_restarts_total") == before["http"] + 1
    until(lambda: value(server, "queue_tokens") == 0)
    assert value(server, "engine_restarts_total") == before["engine"]


def test_counters_stay_when_their_process_ends(server: ServerProcess) -> None:
    let_age()
    known = counted(server, 200)
    with Load(server.url, 6) as load:
        until(lambda: load.answers[200] >= 60)
    let_age()
    before = {name: value(server, name) for name in ("requests_total", "texts_total")}
    for _ in range(2):
        restarts = said(server, "started again") + 2
        for child in children(server):
            child.kill()
        server.client.close()
        server.client = httpx.Client(base_url=server.url, **LOCAL, timeout=60)
        until(lambda: said(server, "started again") == restarts)  # noqa: B023  used at once
        until(lambda: is_ready(server))
    let_age()
    assert counted(server, 200) == known + load.answers[200]
    assert all(value(server, name) >= least for name, least in before.items())


def test_ready_is_red_while_a_process_is_missing(server: ServerProcess) -> None:
    clients = [httpx.Client(base_url=server.url, **LOCAL) for _ in range(16)]
    for client in clients:
        assert client.get("/ready").status_code == 200
    children(server)[0].kill()
    seen = set()

    def turned_red() -> bool:
        for client in clients:
            try:
                seen.add(client.get("/ready").text)
            except httpx.TransportError:
                continue
        return any("HTTP process http-1 is being started" in text for text in seen)

    until(turned_red, "a red /ready")
    until(lambda: is_ready(server))
    for client in clients:
        client.close()


@pytest.mark.parametrize("busy", [True, False])
def test_nothing_is_left_when_the_engine_process_is_killed(
    tiny_artifact: Artifact, busy: bool
) -> None:
    """What waits gets 503 or a closed connection at once."""
    server = ServerProcess(tiny_artifact.path, *SEVERAL, *QUIET)
    server.wait_until_ready()
    others = children(server)
    others[1].suspend()  # one that cannot notice
    with Load(server.url, 16 * busy) as load:
        if busy:
            until(lambda: load.answers[200] >= 50)
        server.stop(signal.SIGKILL)
        _, left = psutil.wait_procs(others, timeout=PATIENCE_SECONDS)
        assert left == []
    assert set(load.answers) <= {200, 503, "lost", "refused"}
    server.client.close()
    assert server.process.stdout
    server.process.stdout.close()


def test_an_engine_that_fails_for_good_ends_all_with_1(tiny_artifact: Artifact) -> None:
    flags = ("--dies-after", "60", *SEVERAL, "--log-requests", "false")
    module = "tests.support.faulty_server"
    with running_server(tiny_artifact.path, *flags, module=module) as server:
        others = children(server)
        with Load(server.url, 6) as load:
            until(lambda: any(line.get("level") == "critical" for line in server.log))
            assert server.process.wait(PATIENCE_SECONDS) == 1
        assert psutil.wait_procs(others, timeout=0)[1] == []
    assert set(load.answers) <= {200, 424, 503, "lost", "refused"}
    assert load.answers[503] > 0
    assert said(server, "died 4 times")
    assert (server.log[-1]["message"], server.log[-1]["exit_code"]) == ("stopped", 1)


def test_a_stopped_http_process_is_replaced_and_the_others_are_served(
    tiny_artifact: Artifact,
) -> None:
    flags = ("--http-processes", "3", *QUIET, "--stall-timeout-seconds", "3")
    with running_server(tiny_artifact.path, *flags) as server:
        clients = [httpx.Client(base_url=server.url, **LOCAL, timeout=9) for _ in range(24)]
        for client in clients:
            client.get("/health")
        stopped = children(server)[0]
        memory = psutil.Process(server.process.pid).memory_info().rss
        stopped.suspend()
        answers: Counter[int | str] = Counter()
        for client in clients:
            try:
                answers[client.post("/embed", json={"inputs": "a"}).status_code] += 1
            except httpx.TransportError:
                answers["lost"] += 1
        assert answers[200] >= 8, answers
        assert set(answers) <= {200, "lost"}
        until(lambda: any("did nothing for" in line["message"] for line in server.log))
        until(lambda: is_ready(server))
        assert not stopped.is_running()
        let_age()
        assert value(server, "http_restarts_total") == 1
        assert psutil.Process(server.process.pid).memory_info().rss - memory < 50e6
        for client in clients:
            client.close()


def test_a_process_that_cannot_start_is_a_sentence(tiny_artifact: Artifact) -> None:
    server = ServerProcess(
        tiny_artifact.path, "--http-processes", "2", module="tests.support.broken_http_process"
    )
    assert server.process.wait(PATIENCE_SECONDS) == 1
    server._reader.join(PATIENCE_SECONDS)
    said = [line["message"] for line in server.log if line.get("level") == "critical"]
    assert said[0].startswith("HTTP process http-")
    assert said[0].endswith(
        "cannot start: it ended with exit code 1 before it served. The lines above say why."
    )
    server.client.close()
    assert server.process.stdout
    server.process.stdout.close()


@pytest.mark.parametrize("tries", [2, 3])
def test_a_process_that_the_system_does_not_start_is_tried_again(
    tiny_artifact: Artifact, tries: int
) -> None:
    """As at a limit of processes; after three tries without success all end."""
    flags = ("--refused", f"3-{2 + tries}", "--http-processes", "2", "--log-requests", "false")
    module = "tests.support.broken_http_process"
    with running_server(tiny_artifact.path, *flags, module=module) as server:
        children(server)[0].kill()
        words = "cannot be started: Resource temporarily unavailable"
        until(lambda: said(server, words) == tries)
        if tries == 2:
            until(lambda: is_ready(server))
            assert server.stop() == 0
        else:
            assert server.process.wait(PATIENCE_SECONDS) == 1


def test_kills_leave_no_descriptor_and_no_memory(tiny_artifact: Artifact) -> None:
    with running_server(tiny_artifact.path, "--http-processes", "2", *QUIET) as server:
        engine = psutil.Process(server.process.pid)

        def kill(number: int) -> None:
            children(server)[number % 2].kill()
            until(lambda: said(server, "started again") == number + 1)
            until(lambda: is_ready(server) and len(children(server)) == 2)

        for number in range(2):
            kill(number)
        descriptors, memory = engine.num_fds(), engine.memory_info().rss
        for number in range(2, 10):
            kill(number)
        until(lambda: engine.num_fds() <= descriptors)
        assert engine.memory_info().rss - memory < 5e6
        server.client.close()
        server.client = httpx.Client(base_url=server.url, **LOCAL, timeout=60)
        assert value(server, "http_restarts_total") == 10
        assert server.stop() == 0


# --- signals ---


def test_sigterm_to_every_process_is_an_orderly_end(tiny_artifact: Artifact) -> None:
    """As an init system sends it, which tells each process of the service."""
    with running_server(tiny_artifact.path, *SEVERAL) as server:
        with Load(server.url, 8) as load:
            until(lambda: load.answers[200] >= 50)
            for child in children(server):
                child.terminate()
            assert server.stop() == 0
        taken = [line["status"] for line in server.log if line.get("route") == "/embed"]
        got = Counter({k: v for k, v in load.answers.items() if isinstance(k, int)})
        assert Counter(taken) == got
        assert set(got) <= {200, 503}


def test_a_second_signal_does_not_wait(tiny_artifact: Artifact) -> None:
    with running_server(tiny_artifact.path, *SEVERAL, *QUIET) as server:
        host, port = server.client.base_url.host, server.client.base_url.port
        with socket.create_connection((host, port)) as held:
            head = "POST /embed HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            held.sendall(f"{head}Content-Length: 9\r\n\r\n{{".encode())
            until(lambda: value(server, "requests_in_flight") == 2)  # and this question
            server.process.send_signal(signal.SIGTERM)
            until(lambda: any(line["message"] == "draining" for line in server.log))
            assert server.stop(signal.SIGTERM) == 1


def test_an_address_in_use_is_one_sentence(tiny_artifact: Artifact, server: ServerProcess) -> None:
    """Also by another service of several processes, whose port could be shared."""
    port = str(server.client.base_url.port)
    command = [sys.executable, "-m", "s2sent.service", "serve", "--port", port]
    command += ["--artifact", str(tiny_artifact.path), *SEVERAL]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Cannot listen on 127.0.0.1:{port}: it is taken."
        " Stop what uses it, or set another port: --port 9000, or make serve PORT=9000.\n"
    )
