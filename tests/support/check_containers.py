"""Shows that the image of the service keeps its promises; prints one row per promise.

    python -m tests.support.check_containers --engine podman --image s2sent:cpu --build

Needs podman or docker, only the standard library, and nothing but loopback. Not a pytest module:
it needs a container engine and the image.
"""

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.support.drain_load import Load, compare, exchange

ROOT = Path(__file__).parents[2]
BASE = "python:3.11-slim-bookworm"
MOST_BYTES_BEYOND_BASE = 250_000_000
READY_TIMEOUT_SECONDS = 120
UNPRIVILEGED = (
    *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--user", "65534"),
)
# Printed by the image's own Python: what must not be there, if it is.
UNWANTED = """
import importlib.util as u, os, shutil
modules = "torch transformers optimum pip setuptools wheel huggingface_hub pytest".split()
print([m for m in modules if u.find_spec(m)]
    + [t for t in ("gcc", "cc", "c++", "make", "git") if shutil.which(t)]
    + [c for c in ("/root/.cache", "/wheels", "/src") if os.path.exists(c)])
"""


class Engine:
    """podman or docker, and the image that is looked at."""

    def __init__(self, program: str, image: str) -> None:
        self.is_podman = Path(program).name == "podman"
        self.image = image
        self._program = program

    def __call__(self, *arguments: str) -> str:
        """Run one command and return what it printed; raises AssertionError when it fails."""
        done = subprocess.run(
            [self._program, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr.strip()}"
        return done.stdout.strip()

    def build(self) -> None:
        """Build the image from the checkout; podman's own format would lose the HEALTHCHECK."""
        # Without layers podman copies less where its storage cannot share them.
        own = ("--format", "docker", "--layers=false", "--pull=missing") if self.is_podman else ()
        self("build", *own, "--network", "host", "--tag", self.image, str(ROOT))

    def inspect(self, image: str, field: str) -> str:
        """A field of an image, as a Go template names it."""
        return self("image", "inspect", "--format", field, image)


class Container:
    """A container of the image, its port published on loopback; removed with the block."""

    def __init__(self, engine: Engine, *options: str) -> None:
        self.name = f"s2sent-check-{uuid.uuid4().hex[:8]}"
        self._engine = engine
        engine(
            "create", "--name", self.name, "--publish", "127.0.0.1::8080", *options, engine.image
        )
        self._started = time.monotonic()
        engine("start", self.name)

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *_: object) -> None:
        self._engine("rm", "--force", "--volumes", self.name)

    def connect(self, timeout_seconds: float = 60) -> http.client.HTTPConnection:
        """A connection that is made with its first request."""
        address = self._engine("port", self.name, "8080").splitlines()[0]
        host, _, port = address.rpartition(":")
        return http.client.HTTPConnection(host, int(port), timeout=timeout_seconds)

    def wait_until_ready(self) -> float:
        """Returns the seconds from the start to the first 200 of /ready."""
        connection = self.connect(timeout_seconds=2)
        while time.monotonic() < self._started + READY_TIMEOUT_SECONDS:
            try:
                if exchange(connection, "GET", "/ready")[0] == 200:
                    return time.monotonic() - self._started
            except (OSError, http.client.HTTPException):
                connection.close()  # nothing listens yet
            time.sleep(0.02)
        raise AssertionError(f"not ready: {self.log()[-3:]}")

    def stop(self, timeout_seconds: int) -> tuple[float, int]:
        """Returns the seconds it took and the exit code."""
        before = time.monotonic()
        self._engine("stop", "--time", str(timeout_seconds), self.name)
        seconds = time.monotonic() - before
        return seconds, int(self._engine("inspect", "--format", "{{.State.ExitCode}}", self.name))

    def log(self) -> list[dict[str, Any]]:
        """The lines of its log, as the service writes them."""
        lines = self._engine("logs", self.name).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


def size(engine: Engine) -> str:
    """Below 250 MB beyond the base."""
    total, of_base = (int(engine.inspect(image, "{{.Size}}")) for image in (engine.image, BASE))
    assert total - of_base < MOST_BYTES_BEYOND_BASE, f"{(total - of_base) / 1e6:.0f} MB"
    return f"{total / 1e6:.0f} MB, {(total - of_base) / 1e6:.0f} MB beyond {BASE}"


def contents(engine: Engine) -> str:
    """No torch, no compiler, no pip, no hub client, no cache."""
    python = ("--rm", "--entrypoint", "/opt/venv/bin/python")
    found = engine("run", *python, engine.image, "-c", UNWANTED)
    assert found == "[]", found
    return "nothing unwanted"


def description(engine: Engine) -> str:
    """OCI labels, a user that is not root, and a health check."""
    config = json.loads(engine.inspect(engine.image, "{{json .Config}}"))
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == "s2sent"
    assert int(config["User"].partition(":")[0]) > 0
    assert '"healthcheck"' in engine("image", "inspect", engine.image), "no HEALTHCHECK"
    return f"version {labels['org.opencontainers.image.version']}, user {config['User']}"


def start(engine: Engine) -> str:
    """From start to ready, with the default settings and user."""
    with Container(engine) as container:
        seconds = container.wait_until_ready()
        began = json.loads(
            engine("inspect", "--format", "{{json .State.StartedAt}}", container.name)
        )
        ready = next(line["time"] for line in container.log() if line["message"] == "ready")
        own = (datetime.fromisoformat(ready) - datetime.fromisoformat(began)).total_seconds()
        engine("exec", container.name, "s2sent", "healthcheck")
        return (
            f"ready {own:.2f} s after the process began, {seconds:.2f} s after the engine was"
            " asked; s2sent healthcheck exits 0"
        )


def unprivileged(engine: Engine) -> str:
    """Read-only root, no capability, another user; nothing needs to be written, not even /tmp."""
    no_tmpfs = ("--read-only-tmpfs=false",) if engine.is_podman else ()
    with Container(engine, *UNPRIVILEGED, *no_tmpfs) as container:
        container.wait_until_ready()
        body = {"inputs": "A man is playing a guitar."}
        status, rows = exchange(container.connect(), "POST", "/embed", body)
        assert status == 200, rows
        return f"{' '.join(UNPRIVILEGED)}: an embedding of {len(rows[0])} numbers"


def writes(engine: Engine) -> str:
    """Where it could write, it writes nothing: no cache, no device id, no bytecode."""
    with Container(engine) as container:
        container.wait_until_ready()
        # Folders that changed, and what the engine itself mounts, are not the service's doing.
        own = ("A /run", "A /etc", "A /proc", "A /sys", "A /dev", "A /tini", "A /sbin/docker-init")
        changes = engine("diff", container.name).splitlines()
        written = [line for line in changes if line.startswith("A ") and not line.startswith(own)]
        assert not written, written
        return "nothing written"


def quota(engine: Engine) -> str:
    """One thread under a quota of one core."""
    with Container(engine, "--cpus", "1") as container:
        seconds = container.wait_until_ready()
        threads = exchange(container.connect(), "GET", "/info")[1]["threads"]
        assert threads == 1, f"{threads} threads"
        return f"--cpus 1: {threads} thread, ready after {seconds:.2f} s"


def mounted_model(engine: Engine) -> str:
    """A model mounted at /artifact is the one that is served."""
    with tempfile.TemporaryDirectory() as folder:
        with Container(engine) as embedded:
            engine("cp", f"{embedded.name}:/artifact", folder)
        artifact = Path(folder, "artifact")
        manifest = json.loads((artifact / "manifest.json").read_text())
        (artifact / "manifest.json").write_text(json.dumps(manifest | {"name": "another"}))
        Path(folder).chmod(0o755)  # the container's user is another
        with Container(engine, "--volume", f"{artifact}:/artifact:ro") as container:
            container.wait_until_ready()
            name = exchange(container.connect(), "GET", "/info")[1]["model_id"]
            assert name == "another", name
            return f"model_id {name}"


def int8(engine: Engine) -> str:
    """Converted at the start with what the image has, into a folder that can be written."""
    settings = {"S2SENT_PRECISION": "int8", "S2SENT_INT8_CACHE": "/cache/int8"}
    given = [part for name, value in settings.items() for part in ("--env", f"{name}={value}")]
    with Container(engine, *given, "--read-only", "--tmpfs", "/cache:mode=1777") as container:
        seconds = container.wait_until_ready()
        precision = exchange(container.connect(), "GET", "/info")[1]["precision"]
        assert precision == "int8", precision
        return f"precision {precision}, ready after {seconds:.2f} s"


def early_stop(engine: Engine) -> str:
    """Stopped before Python has a handler, it still ends at once."""
    with Container(engine) as container:
        seconds, code = container.stop(10)
        assert seconds < 5, f"{seconds:.1f} s, exit code {code}"
        return f"gone after {seconds:.2f} s, exit code {code}"


def drain(engine: Engine) -> str:
    """Stopped under load: what was accepted is answered, and the log agrees with the clients."""
    with Container(engine) as container:
        container.wait_until_ready()
        connection = container.connect()
        address = (connection.host, connection.port)
        load = Load(lambda: http.client.HTTPConnection(*address, timeout=60), clients=16)
        time.sleep(4)
        load.stopping()
        seconds, code = container.stop(45)
        load.finish()
        story = compare(load, container.log())
        assert code == 0, f"exit code {code}: {container.log()[-3:]}"
        return f"{story}; stopped in {seconds:.2f} s, exit code {code}"


CHECKS: tuple[Callable[[Engine], str], ...] = (
    *(size, contents, description, start, unprivileged, writes, quota, mounted_model),
    *(int8, early_stop, drain),
)


def main() -> int:
    """Run every check; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description="Check the image of the service.")
    parser.add_argument("--engine", default="podman", help="podman or docker")
    parser.add_argument("--image", default="s2sent:cpu")
    parser.add_argument("--build", action="store_true", help="build the image first")
    given = parser.parse_args()
    engine = Engine(given.engine, given.image)
    if given.build:
        engine.build()
    failures = 0
    for check in CHECKS:
        try:
            verdict, detail = "ok", check(engine)
        except AssertionError as error:
            verdict, detail, failures = "FAILED", str(error), failures + 1
        sys.stdout.write(f"{check.__name__:14} {verdict:7} {detail}\n")
        sys.stdout.flush()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
