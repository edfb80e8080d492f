"""A system as a running process: started, waited for, asked, and ended."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import psutil

from benchmarks.systems.system import PORT, SECOND_PORT, Route, Rows, System

START_TIMEOUT_SECONDS = 180
STOP_TIMEOUT_SECONDS = 60


class NotMeasured(Exception):
    """A system that cannot be started or does not give the right vectors; the message says why."""


@dataclass
class Running:
    """A system that is ready to be asked."""

    system: System
    process: psutil.Popen
    seconds_to_ready: float
    origin: str  # of its route, where it has one

    @property
    def url(self) -> str:
        """Where texts are sent."""
        return self.origin + (self.system.route.path if self.system.route else "")

    def embed(self, texts: list[str], *, together: int = 1) -> Rows:
        """Embeddings [n, dim], L2-normalised, of requests with so many texts, one after another."""
        rows: list[list[float]] = []
        for start in range(0, len(texts), together):
            rows += self._embed_together(texts[start : start + together])
        embeddings = np.array(rows, dtype=np.float32)
        embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
        return embeddings

    def _embed_together(self, texts: list[str]) -> list[list[float]]:
        route = self.system.route
        if route is None:
            rows: list[list[float]] = self.ask({"do": "embed", "texts": texts})
            return rows
        return route.rows(_post(self.url, route.body(texts)))

    def ask(self, task: dict[str, Any]) -> Any:
        """Give a worker a task and wait for its answer."""
        line = ""
        with suppress(BrokenPipeError):  # it has ended, as an empty line says too
            print(json.dumps(task), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        if not line:
            raise NotMeasured(f"the worker ended with {self.process.wait()} at {task['do']}")
        return json.loads(line)


@contextmanager
def running(system: System, log: Path) -> Iterator[Running]:
    """Start ``system``, wait until it is ready, and end it with the block.

    Its output goes to the file ``log``. Raises `NotMeasured` when it does not become ready.
    """
    if not shutil.which(system.command[0]):
        raise NotMeasured(f"{system.command[0]} is not there. {system.install}")
    origin = f"http://127.0.0.1:{free_port()}"
    with log.open("w") as output:
        started = time.perf_counter()
        process = _start(system, origin, output)
        try:
            _wait_until_ready(system, process, origin, log)
            seconds = time.perf_counter() - started
            yield Running(system, process, seconds, origin)
        finally:
            _stop(process)


def smallest_cosine(system: Running) -> float:
    """Of its embeddings to the reference ones, at the worst text."""
    check = system.system.check
    return float(np.sum(system.embed(check.texts) * check.embeddings, axis=1).min())


def free_port() -> int:
    """A port on loopback that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def installed_versions(system: System) -> dict[str, str]:
    """The versions of a system's packages and of its Python, or what its program says of itself.

    Empty where the system is not there, or its program does not run on this processor.
    """
    if not shutil.which(system.command[0]):
        return {}
    if not system.packages:
        command = [system.command[0], "--version"]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        name, _, version = answer.stdout.strip().partition(" ")
        return {name: version} if answer.returncode == 0 else {}
    code = (
        "import json, platform, sys; from importlib.metadata import version;"
        "print(json.dumps({'python': platform.python_version()}"
        " | {name: version(name) for name in sys.argv[1:]}))"
    )
    command = [str(system.python), "-c", code, *system.packages]
    versions: dict[str, str] = json.loads(subprocess.check_output(command, text=True))
    return versions


def _start(system: System, origin: str, output: TextIO) -> psutil.Popen:
    ports = {PORT: origin.rpartition(":")[2], SECOND_PORT: str(free_port())}
    # Settings of a developer's own service are not part of the measurement.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("S2SENT_", "INFINITY_"))}
    return psutil.Popen(
        [ports.get(word, word) for word in system.command],
        cwd=system.folder,
        env={**inherited, "HF_HUB_OFFLINE": "1", **system.environment},
        stdin=subprocess.PIPE,
        stdout=output if system.route else subprocess.PIPE,
        stderr=output,
        text=True,
    )


def _wait_until_ready(system: System, process: psutil.Popen, origin: str, log: Path) -> None:
    if system.route is None:
        if not process.stdout.readline():
            raise NotMeasured(_describe_end(process, log))
        return
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not _is_ready(system.route, origin):
        if process.poll() is not None:
            raise NotMeasured(_describe_end(process, log))
        if time.monotonic() > deadline:
            raise NotMeasured(f"not ready after {START_TIMEOUT_SECONDS} s; see {log}")
        time.sleep(0.01)


def _is_ready(route: Route, origin: str) -> bool:
    if not route.ready:
        return _embeds(route, origin)
    try:
        with urllib.request.urlopen(origin + route.ready, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _embeds(route: Route, origin: str) -> bool:
    """Whether a text is embedded, and not refused with 503, as while a model is being loaded.

    Raises `NotMeasured` for any other refusal, which waiting would not change.
    """
    url = origin + route.path
    try:
        with urllib.request.urlopen(_request(url, route.body(["ready"])), timeout=60):
            return True
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise _refusal(url, error) from error
        return False
    except OSError:
        return False


def _describe_end(process: psutil.Popen, log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else "no output"
    code = process.wait()
    if code == -signal.SIGILL:
        last = "it was built with instructions that this processor lacks"
    return f"ended with {code} at the start: {last} (all of it: {log})"


def _stop(process: psutil.Popen) -> None:
    """End the process and what it started."""
    if process.poll() is None:
        family = [process, *process.children(recursive=True)]
        process.terminate()
        _, alive = psutil.wait_procs(family, timeout=STOP_TIMEOUT_SECONDS)
        for member in alive:
            member.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            with suppress(BrokenPipeError):  # what was not read of a last task
                pipe.close()


def _post(url: str, body: Any) -> Any:
    try:
        with urllib.request.urlopen(_request(url, body), timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise _refusal(url, error) from error


def _request(url: str, body: Any) -> urllib.request.Request:
    return urllib.request.Request(
        url, json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )


def _refusal(url: str, error: urllib.error.HTTPError) -> NotMeasured:
    return NotMeasured(f"{url} answers {error.code}: {error.read()[:200]!r}")
