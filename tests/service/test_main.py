"""The command line: flags that are the settings, errors without a traceback, a health check."""

import http.server
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from s2sent.service.__main__ import app
from s2sent.service.server import listen
from s2sent.service.settings_reference import describe_fields, settings_table
from tests.support.serving import serving

run = CliRunner().invoke


@pytest.fixture
def statuses() -> Iterator[dict[str, int]]:
    """A server whose answer per path the test sets; its port is in the environment."""
    statuses = {"/ready": 200, "/health": 200}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses[self.path])
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_arguments: Any) -> None:
            """Keep the test's output clean."""

    with (
        serving(http.server.HTTPServer(("127.0.0.1", 0), Handler)) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("S2SENT_HOST", "0.0.0.0")  # noqa: S104  # what a container sets; not bound here
        patch.setenv("S2SENT_PORT", str(server.server_port))
        yield statuses


def test_every_setting_is_a_flag_of_serve() -> None:
    text = run(app, ["serve", "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"}).output
    for field in describe_fields():
        assert field.flag in text
        assert field.opposite_flag in text
        assert field.variable in text


def test_bad_settings_are_sentences_and_exit_2() -> None:
    result = run(app, ["serve", "--port", "99999", "--device", "tpu"])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("flag", ["--host", "--artifact", "--api-keys", "--int8-cache"])
def test_a_flag_without_a_value_is_refused(flag: str) -> None:
    """An empty host is every address, and an empty folder the one the server was started in."""
    result = run(app, ["serve", flag, "", "--port", "99999"])
    assert result.exit_code == 2
    assert result.stderr == f"{flag} is empty. Give it a value, or leave it out.\n"


def test_switches_have_two_sides() -> None:
    result = run(app, ["serve", "--metrics-require-key", "--no-auto-truncate"])
    assert result.exit_code == 2
    assert "metrics_require_key is set without api_keys" in result.stderr


def test_a_start_that_fails_while_the_model_is_opened_is_a_sentence_and_its_exit_code() -> None:
    """Threads that are in native code then do not end the process with a signal."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        for flags, code, part in (
            (["--port", str(port)], 1, f"127.0.0.1:{port}"),
            (["--port", "0", "--api-keys-file", "/nowhere"], 2, "/nowhere"),
        ):
            command = [sys.executable, "-m", "s2sent.service", "serve", *flags]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == code
            assert part in done.stderr
            assert len(done.stderr.splitlines()) == 1


def test_what_is_logged_while_the_model_is_opened_is_a_line_of_json(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = str(tmp_path / "file" / "cache")  # which cannot be made
    flags = ["--precision", "auto", "--int8-cache", cache, "--default-depth", "1000", "--port", "0"]
    command = [sys.executable, "-m", "s2sent.service", "serve", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"level": "warning", "logger": "s2sent.service.engine.inference.served_artifact"} in [
        {name: line[name] for name in ("level", "logger")} for line in lines
    ]


def test_info_tells_what_an_artifact_is() -> None:
    lines = run(app, ["info", "artifacts/default"]).output.splitlines()
    told = dict(line.split(maxsplit=1) for line in lines if len(line.split()) > 1)
    manifest = json.loads(Path("artifacts/default/manifest.json").read_text())
    size = sum(file["bytes"] for file in manifest["files"].values())
    assert told["name"] == manifest["name"]
    assert told["backbone"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert float(told["size"].split()[0]) == round(size / 1e6, 1)
    assert told["dimensions"] == str(manifest["dim"])
    assert told["depths"] == "2, 3, 4, 5, all 6 blocks"
    assert told["precision"] == "weight-int8; int8 with --precision int8"
    assert {task: float(told[task]) for task in manifest["scores"]} == manifest["scores"]


@pytest.mark.parametrize("folder", ["tests", "no/such/folder", ""])
def test_info_of_what_is_no_artifact_is_a_sentence(folder: str) -> None:
    result = run(app, ["info", folder])
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1


def test_settings_prints_the_table() -> None:
    assert run(app, ["settings"]).output.strip() == settings_table()


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (503, 1)])
def test_healthcheck_follows_ready(statuses: dict[str, int], status: int, exit_code: int) -> None:
    statuses["/ready"] = status
    assert run(app, ["healthcheck"]).exit_code == exit_code


def test_healthcheck_can_ask_for_being_alive_only(statuses: dict[str, int]) -> None:
    statuses["/ready"] = 503
    assert run(app, ["healthcheck", "--path", "/health"]).exit_code == 0


@pytest.mark.parametrize("seconds", ["-1", "3601", "1e300", "inf", "nan"])
def test_healthcheck_waits_for_some_time(seconds: str) -> None:
    assert run(app, ["healthcheck", "--timeout-seconds", seconds]).exit_code == 2


def test_a_key_of_standard_input_that_is_closed_is_a_sentence() -> None:
    command = [sys.executable, "-m", "s2sent.service", "hash-key", "alice", "--from-stdin"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "Standard input has no key. Write one line to it.\n"


@pytest.mark.parametrize(
    ("host", "flags"),
    [("127.0.0.1", ["--path", "/ü"]), (f"{'a' * 64}.com", []), ("a b", [])],
    ids=["a path beyond ASCII", "a name that is too long", "a space"],
)
def test_healthcheck_of_what_cannot_be_asked_is_a_sentence(host: str, flags: list[str]) -> None:
    result = run(app, ["healthcheck", *flags], env={"S2SENT_HOST": host})
    assert result.exit_code == 1
    assert f"No answer from {host}" in result.stderr


def test_help_shows_choices_as_they_are_written() -> None:
    shown = run(app, ["serve", "--help"], env={"COLUMNS": "200"}).stdout
    assert "debug|info|warning|error" in shown
    assert "as_is|int8|fp16|fp32|auto" in shown


def test_healthcheck_of_nothing_is_a_sentence_and_exit_1() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    result = run(app, ["healthcheck"], env={"S2SENT_PORT": str(port)})
    assert result.exit_code == 1
    assert f"No answer from 127.0.0.1:{port}" in result.stderr
