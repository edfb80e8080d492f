"""Shows that the image of the service keeps its promises; prints one row per promise.

    python -m tests.check_containers --engine podman --image s2sent:cpu

Needs podman or docker and an image built from the Dockerfile (``--build`` builds it). Uses only the
standard library, and nothing but loopback. Not a pytest module: it needs a container engine.
"""

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
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
    + [c for c in ("/root/.cache", "/tmp/pip", "/wheels", "/src") if os.path.exists(c)])
"""

Answers = list[tuple[str, int | str]]


class Engine:
    """podman or docker, and the image that is looked at."""

    def __init__(self, program: str, image: str) -> None:
        self.program = program
        self.image = image

    def __call__(self, *arguments: str) -> str:
        """Run one command and return what it printed; raises AssertionError when it fails."""
        done = subprocess.run(
            [self.program, *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{self.program} {' '.join(arguments)}: {done.stderr.strip()}"
        return done.stdout.strip()

    def inspect(self, image: str, field: str) -> str:
        return self("image", "inspect", "--format", field, image)


class Container:
    """A container of the image, its port published on loopback; removed with the block."""

    def __init__(self, engine: Engine, *options: str) -> None:
        self.engine = engine
        self.name = f"s2sent-check-{uuid.uuid4().hex[:8]}"
        published = ("--publish", "127.0.0.1::8080")
        engine("create", "--name", self.name, *published, *options, engine.image)
        self.started = time.monotonic()
        engine("start", self.name)

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *_: object) -> None:
        self.engine("rm", "--force", "--volumes", self.name)

    def connect(self, timeout_seconds: float = 60) -> http.client.HTTPConnection:
        host, _, port = self.engine("port", self.name, "8080").splitlines()[0].rpartition(":")
        return http.client.HTTPConnection(host, int(port), timeout=timeout_seconds)

    def get(self, path: str) -> Any:
        return exchange(self.connect(), "GET", path)[1]

    def wait_until_ready(self) -> float:
        """Returns the seconds from the start to the first 200 of /ready."""
        connection = self.connect(timeout_seconds=2)
        while time.monotonic() < self.started + READY_TIMEOUT_SECONDS:
            try:
                if exchange(connection, "GET", "/ready")[0] == 200:
                    return time.monotonic() - self.started
            except (OSError, http.client.HTTPException):
                connection.close()  # nothing listens yet
            time.sleep(0.02)
        raise AssertionError(f"not ready: {self.logs()[-3:]}")

    def stop(self, timeout_seconds: int) -> tuple[float, int]:
        """Returns the seconds it took and the exit code."""
        before = time.monotonic()
        self.engine("stop", "--time", str(timeout_seconds), self.name)
        seconds = time.monotonic() - before
        return seconds, int(self.engine("inspect", "--format", "{{.State.ExitCode}}", self.name))

    def logs(self) -> list[dict[str, Any]]:
        lines = self.engine("logs", self.name).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


def exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **header: str
) -> tuple[int, Any]:
    """One request; returns the status and the JSON of the answer."""
    headers = {"Content-Type": "application/json"} | {k.replace("_", "-"): header[k] for k in header}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def size(engine: Engine, base: str) -> str:
    """Below 250 MB beyond the base."""
    total, of_base = (int(engine.inspect(image, "{{.Size}}")) for image in (engine.image, base))
    assert total - of_base < MOST_BYTES_BEYOND_BASE, f"{(total - of_base) / 1e6:.0f} MB"
    return f"{total / 1e6:.0f} MB, {(total - of_base) / 1e6:.0f} MB beyond {base}"


def contents(engine: Engine) -> str:
    """No torch, no compiler, no pip, no hub client, no cache."""
    found = engine("run", "--rm", "--entrypoint", "/opt/venv/bin/python", engine.image, "-c", UNWANTED)
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
        engine("exec", container.name, "s2sent", "healthcheck")
        return f"ready after {seconds:.2f} s; s2sent healthcheck exits 0"


def unprivileged(engine: Engine) -> str:
    """Read-only root, no capability, another user; nothing needs to be written, not even /tmp."""
    no_tmpfs = ("--read-only-tmpfs=false",) if engine.program.endswith("podman") else ()
    with Container(engine, *UNPRIVILEGED, *no_tmpfs) as container:
        container.wait_until_ready()
        body = {"inputs": "A man is playing a guitar."}
        status, rows = exchange(container.connect(), "POST", "/embed", body)
        assert status == 200, rows
        changed = [] if not no_tmpfs else engine("diff", container.name).splitlines()
        written = [line for line in changed if not line.startswith(("C ", "A /run", "A /etc"))]
        assert not written, written
        return f"an embedding of {len(rows[0])} numbers; nothing written"


def quota(engine: Engine) -> str:
    """One thread under a quota of one core."""
    with Container(engine, "--cpus", "1") as container:
        seconds = container.wait_until_ready()
        info = container.get("/info")
        assert info["threads"] == 1, info
        return f"threads {info['threads']}, ready after {seconds:.2f} s"


def mounted_model(engine: Engine) -> str:
    """A model mounted at /artifact is the one that is served."""
    with tempfile.TemporaryDirectory() as folder:
        with Container(engine) as embedded:
            engine("cp", f"{embedded.name}:/artifact", folder)
        artifact = Path(folder, "artifact")
        manifest = json.loads((artifact / "manifest.json").read_text())
        (artifact / "manifest.json").write_text(json.dumps(manifest | {"name": "another"}))
        for path in (Path(folder), artifact, *artifact.rglob("*")):
            path.chmod(0o755)
        with Container(engine, "--volume", f"{artifact}:/artifact:ro") as container:
            container.wait_until_ready()
            name = container.get("/info")["model_id"]
            assert name == "another", name
            return f"model_id {name}"


def early_stop(engine: Engine) -> str:
    """Stopped before Python has a handler, it ends at once when there is an init."""
    with Container(engine, "--init") as container:
        seconds, code = container.stop(10)
        assert seconds < 5, f"{seconds:.1f} s"
        return f"gone after {seconds:.2f} s, exit code {code}"


def drain(engine: Engine) -> str:
    """Stopped under load: what was accepted is answered, and the log agrees with the clients."""
    with Container(engine) as container:
        container.wait_until_ready()
        answers: Answers = []
        stopping, stopped = threading.Event(), threading.Event()
        late: Answers = []
        clients = [
            threading.Thread(target=_client, args=(container.connect(), answers, late, stopping, stopped))
            for _ in range(16)
        ]
        for client in clients:
            client.start()
        time.sleep(3)
        stopping.set()
        seconds, code = container.stop(45)
        stopped.set()
        for client in clients:
            client.join()
        return _compare(answers, late, container.logs(), seconds, code)


def _client(
    connection: http.client.HTTPConnection,
    answers: Answers,
    late: Answers,
    stopping: threading.Event,
    stopped: threading.Event,
) -> None:
    """Sends one request after the other until nobody listens; notes what became of each."""
    body = {"inputs": [f"Sentence {number} of a request that takes a while." for number in range(48)]}
    while not stopped.is_set():
        request_id = uuid.uuid4().hex
        try:
            connection.connect()
        except OSError:
            return  # the port is closed: nothing was sent
        before_stop = not stopping.is_set()
        try:
            outcome: int | str = exchange(
                connection, "POST", "/embed", body, X_Request_Id=request_id
            )[0]
        except (OSError, http.client.HTTPException, ValueError) as error:
            outcome = type(error).__name__
        connection.close()
        answers.append((request_id, outcome))
        if before_stop and stopping.is_set():
            late.append((request_id, outcome))
        if outcome != 200:
            time.sleep(0.05)


def _compare(
    answers: Answers, late: Answers, logs: list[dict[str, Any]], seconds: float, code: int
) -> str:
    logged = {line["request_id"]: line["status"] for line in logs if line["message"] == "request"}
    got = dict(answers)
    lost = {key: status for key, status in logged.items() if got.get(key) != status}
    unknown = [outcome for key, outcome in answers if key not in logged]
    counts = Counter(outcome for _, outcome in answers)
    assert not lost, f"the log has {len(lost)} answers that no client got: {lost}"
    assert not unknown, f"{len(unknown)} requests are not in the log: {unknown}"
    assert {outcome for _, outcome in late} == {200}, f"in flight at the stop: {late}"
    assert code == 0, f"exit code {code}: {logs[-3:]}"
    accepted = sum(status == 200 for status in logged.values())
    return (
        f"{accepted} accepted, {counts[200]} answered ({len(late)} in flight at the stop),"
        f" {counts[503]} refused with 503; stopped in {seconds:.2f} s, exit code {code}"
    )


def main() -> int:
    """Run every check; returns 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", default="podman", help="podman or docker")
    parser.add_argument("--image", default="s2sent:cpu")
    parser.add_argument("--base", default="python:3.11-slim-bookworm")
    parser.add_argument("--build", action="store_true", help="build the image first")
    given = parser.parse_args()
    engine = Engine(given.engine, given.image)
    if given.build:
        engine("build", "--format", "docker", "--tag", given.image, str(ROOT))
    checks: list[tuple[str, Callable[[], str]]] = [
        ("size", lambda: size(engine, given.base)),
        *((check.__name__, _bound(check, engine)) for check in CHECKS),
    ]
    failures = 0
    for name, check in checks:
        try:
            verdict, detail = "ok", check()
        except AssertionError as error:
            verdict, detail, failures = "FAILED", str(error), failures + 1
        sys.stdout.write(f"{name:14} {verdict:7} {detail}\n")
        sys.stdout.flush()
    return 1 if failures else 0


def _bound(check: Callable[[Engine], str], engine: Engine) -> Callable[[], str]:
    return lambda: check(engine)


CHECKS = (description, start, unprivileged, quota, mounted_model, early_stop, drain)

if __name__ == "__main__":
    sys.exit(main())
