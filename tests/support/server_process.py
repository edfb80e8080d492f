"""The real server as a process on a free port, for tests over real sockets."""

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx

START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 120
# For clients of a server on this machine: no proxy, nor certificates, which take 20 ms to read.
LOCAL: dict[str, Any] = {"trust_env": False, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}


class ServerProcess:
    """A running `s2sent serve`, or ``program`` in its place; ``log`` holds its lines so far.

    ``form`` has the flags of the form that is tested, one process or several; those of the
    variable TEST_SERVER_FLAGS by default. ``variables`` are added to its environment.
    """

    form: ClassVar[tuple[str, ...]] = (*os.environ.get("TEST_SERVER_FLAGS", "").split(),)

    def __init__(
        self,
        artifact: Path,
        *flags: str,
        module: str = "s2sent.service",
        program: Sequence[str] = (),
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", module, *(["serve"] if module == "s2sent.service" else [])]
        command = [*(program or command), "--artifact", str(artifact)]
        unwanted = ("S2SENT_", "PYTHONPATH") if program else "S2SENT_"  # another installation's
        environment = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
        environment |= variables or {}
        self.process = subprocess.Popen(
            [*command, "--port", "0", *self.form, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=cwd,
        )
        self.log: list[dict[str, Any]] = []
        listening = threading.Event()
        # The pipe must be emptied all the time, or the server would wait for us.
        self._reader = threading.Thread(target=self._read_log, args=(listening,), daemon=True)
        self._reader.start()
        assert listening.wait(START_TIMEOUT_SECONDS), "the server does not listen"
        ports = [line["port"] for line in self.log if line["message"] == "listening"]
        assert ports, self.log
        self.url = f"http://127.0.0.1:{ports[0]}"
        self.client = httpx.Client(base_url=self.url, **LOCAL, timeout=60)

    def _read_log(self, listening: threading.Event) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(json.loads(line) if line.startswith("{") else {"message": line})
            if self.log[-1]["message"] == "listening":
                listening.set()
        listening.set()

    def wait_until_ready(self) -> None:
        """Block until /ready answers 200."""
        while self.client.get("/ready").status_code != 200:
            assert self.process.poll() is None, self.log
            time.sleep(0.02)  # the processor is for what starts

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; returns the exit code once the process and its log have ended."""
        self.process.send_signal(number)
        code = self.process.wait(STOP_TIMEOUT_SECONDS)
        self._reader.join(STOP_TIMEOUT_SECONDS)
        return code


@contextmanager
def running_server(
    artifact: Path,
    *flags: str,
    module: str = "s2sent.service",
    program: Sequence[str] = (),
    cwd: Path | None = None,
) -> Iterator[ServerProcess]:
    """A server that is ready, ended at the latest when the block ends."""
    server = ServerProcess(artifact, *flags, module=module, program=program, cwd=cwd)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.client.close()
        if server.process.poll() is None:
            server.stop()
        server._reader.join(STOP_TIMEOUT_SECONDS)  # else it reads from a file that is closed
        if server.process.stdout:
            server.process.stdout.close()
