"""A real Prometheus on a free port that scrapes given servers every second, for tests."""

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.monitoring import RULES

START_TIMEOUT_SECONDS = 120
STOP_TIMEOUT_SECONDS = 120

Json = dict[str, Any]


def is_installed() -> bool:
    """Whether prometheus and promtool are on the path."""
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


class Prometheus:
    """A running `prometheus` with the deployed rules, evaluated every second."""

    def __init__(self, folder: Path, targets: Sequence[str]) -> None:
        config = folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(_config(targets)), encoding="utf-8")
        flags = {
            "config.file": config,
            "storage.tsdb.path": folder / "data",
            "web.listen-address": "127.0.0.1:0",
            "log.format": "json",
        }
        self.process = subprocess.Popen(
            ["prometheus", *(f"--{name}={value}" for name, value in flags.items())],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        self.started = time.time()  # seconds since the epoch
        address = self._listening_address()
        self.client = httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=120)
        self._wait_until_ready()

    def query_range(self, expr: str, step_seconds: int = 1) -> list[Json]:
        """The series of an expression since the start: ``metric`` and ``values`` as text.

        Raises AssertionError with Prometheus' own words when it cannot evaluate the expression.
        """
        window = {"start": self.started, "end": time.time(), "step": step_seconds}
        answer = self.client.post("/api/v1/query_range", data={"query": expr, **window}).json()
        assert answer["status"] == "success", f"{expr}: {answer['error']}"
        series: list[Json] = answer["data"]["result"]
        return series

    def values(self, expr: str) -> list[float]:
        """The latest value of each series of an expression."""
        return [float(series["values"][-1][1]) for series in self.query_range(expr)]

    def rules(self) -> list[Json]:
        """Every loaded rule with its ``health`` and ``lastError``."""
        groups = self.client.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def stop(self) -> None:
        """End the process."""
        self.client.close()
        self.process.terminate()
        self.process.wait(STOP_TIMEOUT_SECONDS)
        self._reader.join(STOP_TIMEOUT_SECONDS)
        if self.process.stderr:
            self.process.stderr.close()

    def _wait_until_ready(self) -> None:
        """It listens before its database is open, and answers queries with 503 until then."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while (answer := self.client.get("/-/ready")).status_code != httpx.codes.OK:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.05)

    def _listening_address(self) -> str:
        listening = threading.Event()
        # The pipe must be emptied all the time, or Prometheus would wait for us.
        self._reader = threading.Thread(target=self._read_log, args=(listening,), daemon=True)
        self._reader.start()
        assert listening.wait(START_TIMEOUT_SECONDS), self.log
        message = json.loads(self.log[-1])
        assert message["msg"] == "Listening on", self.log
        return str(message["address"])

    def _read_log(self, listening: threading.Event) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if not listening.is_set():
                self.log.append(line)
            if '"Listening on"' in line:
                listening.set()
        listening.set()


@contextmanager
def running_prometheus(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """A Prometheus that keeps its data in ``folder`` and ends with the block."""
    prometheus = Prometheus(folder, targets)
    try:
        yield prometheus
    finally:
        prometheus.stop()


def _config(targets: Sequence[str]) -> Json:
    """The job is called as in deploy/, because alerts and panels name it."""
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(file) for file in RULES],
        "scrape_configs": [{"job_name": "s2sent", "static_configs": [{"targets": list(targets)}]}],
    }
