"""How `s2sent serve` starts and ends before people's eyes: on a terminal, and by signals."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from s2sent.model.artifact.reader import Artifact
from tests.support.server_process import running_server

ROOT = Path(__file__).parents[2]
SEVERAL = ["--http-processes", "2"]
FORMS = pytest.mark.parametrize("form", [[], SEVERAL], ids=["one process", "http-processes"])


@contextmanager
def on_a_terminal(artifact: Artifact, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`s2sent serve` on a terminal of its own, and the descriptor that reads what it shows."""
    reader, terminal = pty.openpty()
    command = [sys.executable, "-m", "s2sent.service", "serve", "--port", "0"]
    command += ["--artifact", str(artifact.path), *flags]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    try:
        yield process, reader
    finally:
        process.kill()
        process.wait()
        os.close(reader)


def shown(reader: int, until: str = "") -> str:
    """What the terminal shows until a line has these words, or to the end."""
    text = ""
    while not (until and until in text):
        try:
            part = os.read(reader, 65_536)
        except OSError:  # the last process that had the terminal has ended
            break
        text += part.decode()
    return text


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], r"S2Sent is at (\S+), the playground \1/playground\. Ctrl-C ends it\."),
        (
            [*SEVERAL, "--host", "0.0.0.0"],  # noqa: S104
            r"S2Sent is at http://127\.0\.0\.1:\d+\. Ctrl-C ends it\.",
        ),
    ],
    ids=["with the playground", "without"],
)
def test_on_a_terminal_a_line_for_people_has_the_urls(
    tiny_artifact: Artifact, flags: Sequence[str], told: str
) -> None:
    with on_a_terminal(tiny_artifact, *flags) as (process, reader):
        text = shown(reader, until='"ready"')
        assert re.search(told, text), text
        port = re.search(r'"listening".*?"port":(\d+)', text)
        assert port is not None
        assert f":{port[1]}" in text.partition("{")[0]
        process.send_signal(signal.SIGINT)
        shown(reader)
        assert process.wait(60) == 0


def test_what_is_no_terminal_gets_lines_of_json_alone(tiny_artifact: Artifact) -> None:
    with running_server(tiny_artifact.path) as server:
        assert server.stop(signal.SIGINT) == 0
        assert all("level" in line for line in server.log)


@pytest.mark.parametrize(
    ("form", "number", "after_seconds"),
    [
        *(([], signal.SIGINT, 0.0), ([], signal.SIGTERM, 0.05), ([], signal.SIGINT, 0.2)),
        *((SEVERAL, signal.SIGTERM, 0.0), (SEVERAL, signal.SIGINT, 0.05)),
        (SEVERAL, signal.SIGTERM, 0.2),
    ],
)
def test_two_signals_end_in_no_traceback(
    tiny_artifact: Artifact, form: Sequence[str], number: signal.Signals, after_seconds: float
) -> None:
    """Whenever the second one comes: while it drains, between loop and end, or never in time."""
    with on_a_terminal(tiny_artifact, *form) as (process, reader):
        text = shown(reader, until='"ready"')
        process.send_signal(number)
        time.sleep(after_seconds)
        process.send_signal(number)
        text += shown(reader)
        assert process.wait(60) in (0, 1, -number)
    assert "Traceback" not in text


@FORMS
def test_two_signals_end_in_no_traceback_where_requests_wait(
    tiny_artifact: Artifact, form: Sequence[str]
) -> None:
    """One whose body never ends, and one whose texts take longer than the process has."""
    with running_server(tiny_artifact.path, *form) as server:
        address = server.client.base_url.host, server.client.base_url.port
        texts = [f"{number} " + "the dog sings " * 100 for number in range(2048)]
        body = json.dumps({"inputs": texts}).encode()
        head = b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        with socket.create_connection(address) as held, socket.create_connection(address) as long:
            held.sendall(head + b"Content-Length: 9\r\n\r\n{")
            while "s2sent_requests_in_flight 2.0" not in server.client.get("/metrics").text:
                time.sleep(0.05)
            long.sendall(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            time.sleep(0.2)  # it runs by then, mostly; the other one is unanswered anyway
            server.process.send_signal(signal.SIGINT)
            while "draining" not in [line["message"] for line in server.log]:
                time.sleep(0.01)
            assert server.stop(signal.SIGINT) == 1
        assert "Traceback" not in json.dumps(server.log)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_service_starts_ends_it_without_a_word(
    tiny_artifact: Artifact, number: signal.Signals
) -> None:
    with on_a_terminal(tiny_artifact) as (process, reader):
        shown(reader, until="S2Sent is at")  # the loop does not run yet
        process.send_signal(number)
        assert "Traceback" not in shown(reader)
        assert process.wait(60) in (0, -number)


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # As from a shell, also where make runs the tests: it would print the folders that it enters.
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_make_serve_takes_a_port(tmp_path: Path) -> None:
    (tmp_path / "installed").touch()
    done = make("--dry-run", "serve", f"SERVE={tmp_path}", "PORT=9000")
    assert done.stdout.splitlines()[-1] == f"{tmp_path}/bin/s2sent serve --port 9000"


def test_make_says_in_a_sentence_that_python_is_too_old(tmp_path: Path) -> None:
    old = tmp_path / "python3.10"
    told = "import sys; sys.version_info = (3, 10, 13); exec(sys.argv[2])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{told}" "$@"\n')
    old.chmod(0o755)
    done = make("serve", f"SERVE={tmp_path / 'serve'}", f"PYTHON={old}")
    first, _of_make = done.stderr.splitlines()
    assert first == (
        "This is Python 3.10, and S2Sent needs 3.11 or later: make serve PYTHON=/path/to/python3.11"
    )
    assert done.returncode != 0
    assert not (tmp_path / "serve").exists()
