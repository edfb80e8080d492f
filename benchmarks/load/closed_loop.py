"""Closed-loop loads: each connection sends its next request when the last one is answered."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.load.texts import Kind, Texts
from benchmarks.systems.catalogue import Route
from benchmarks.systems.running import NotMeasured, Running
from benchmarks.systems.usage import cpu_seconds

SCRIPT = Path(__file__).with_name("post.lua")
TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Load:
    """One shape of traffic over HTTP."""

    name: str
    connections: int
    texts_per_request: int
    kind: Kind = "short"

    @property
    def label(self) -> str:
        """For people."""
        connections = f"{self.connections} connection{'s' if self.connections > 1 else ''}"
        texts = f"{self.texts_per_request} text{'s' if self.texts_per_request > 1 else ''}"
        return f"{connections} x {texts}{', 128-256 tokens' if self.kind == 'long' else ''}"


@dataclass(frozen=True)
class Calls:
    """What stands beside loads in process: call after call of one caller, on the same texts."""

    name: str
    label: str
    texts_per_call: int
    beside: tuple[str, ...]
    kind: Kind = "short"


LOADS = (
    Load("c1", 1, 1),
    Load("c16", 16, 1),
    Load("c64", 64, 1),
    Load("c256", 256, 1),
    Load("batch", 4, 32),
    Load("long", 16, 1, "long"),
)
CALLS = (
    Calls("one", "one text a call", 1, beside=("c1",)),
    Calls("batches", "batches of 32", 512, beside=("c16", "c64", "c256", "batch")),
    Calls("long", "batches of 32, 128-256 tokens", 64, beside=("long",), kind="long"),
)
BY_NAME = {load.name: load for load in LOADS}


def is_wrk_installed() -> bool:
    """Whether wrk is on the path."""
    return shutil.which("wrk") is not None


def run_load(running: Running, load: Load, bodies: Path, seconds: float) -> dict[str, float]:
    """One wrk run: texts/s of answered requests, latencies in ms, the system's CPU seconds.

    Raises `NotMeasured` when nothing was answered.
    """
    command = ["wrk", "-t1", f"-c{load.connections}", f"-d{max(1, round(seconds))}s"]
    command += [f"--timeout={TIMEOUT_SECONDS}s", "-s", str(SCRIPT), running.url, "--", str(bodies)]
    before = cpu_seconds(running.process)
    done = subprocess.run(command, capture_output=True, text=True)
    used = cpu_seconds(running.process) - before
    if done.returncode:
        raise NotMeasured(f"wrk failed at {load.label}: {(done.stderr or done.stdout)[-200:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    answers = figures["requests"] - figures["failed"]
    if answers <= 0:
        raise NotMeasured(f"no request was answered at {load.label}.")
    texts = answers * load.texts_per_request
    return figures | {"answers": answers} | per_text(texts, figures["seconds"], used)


def run_calls(running: Running, calls: Calls, texts: Texts, seconds: float) -> dict[str, float]:
    """The same figures of a worker, whose latency is that of a call."""
    task = {"do": "measure", "texts_per_call": calls.texts_per_call, "seconds": seconds}
    before = cpu_seconds(running.process)
    answer: dict[str, Any] = running.ask(task | {"texts": texts.of(calls.kind)})
    used = cpu_seconds(running.process) - before
    figures = {"calls": len(answer["call_seconds"]), "seconds": answer["seconds"]}
    latencies = summarise_ms(answer["call_seconds"])
    return figures | latencies | per_text(answer["texts"], answer["seconds"], used)


def per_text(texts: float, seconds: float, cpu: float) -> dict[str, float]:
    """Throughput, and what a thousand texts cost."""
    return {
        "texts_per_second": texts / seconds,
        "cpu_seconds_per_1000_texts": 1000 * cpu / texts,
    }


def summarise_ms(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and p99.9 in ms of times in seconds; nothing of no times."""
    if not seconds:
        return {}
    values = sorted(seconds)
    cuts = quantiles(values, n=1000, method="inclusive") if len(values) > 1 else values * 999
    return {f"p{percent}_ms": 1e3 * cuts[round(percent * 10) - 1] for percent in (50, 90, 99, 99.9)}


def write_bodies(route: Route, texts: Sequence[str], texts_per_request: int, path: Path) -> Path:
    """Request bodies that go through the texts in their order, one a line, at least 256 of them."""
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, max(len(texts), 256 * texts_per_request), texts_per_request):
            chosen = [texts[(start + offset) % len(texts)] for offset in range(texts_per_request)]
            file.write(json.dumps(route.body(chosen)) + "\n")
    return path


def prepare_bodies(name: str, route: Route, load: Load, texts: Texts, folder: Path) -> Path:
    """The file of the system ``name``'s request bodies for ``load``, written once."""
    path = folder / f"{name}-{load.texts_per_request}-{load.kind}.jsonl"
    if not path.exists():
        write_bodies(route, texts.of(load.kind), load.texts_per_request, path)
    return path
