"""Closed-loop loads: each connection sends its next request when the last one is answered.

The same loads in process: one caller, call after call.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.load.texts import Kind, Texts
from benchmarks.systems.running import NotMeasured, Running
from benchmarks.systems.system import Route
from benchmarks.systems.usage import cpu_seconds

SCRIPT = Path(__file__).with_name("post.lua")
TIMEOUT_SECONDS = 60
TEXTS_PER_CALL = 32


@dataclass(frozen=True)
class Load:
    """One shape of traffic over HTTP."""

    name: str
    connections: int
    texts_per_request: int
    kind: Kind = "short"
    in_process: bool = False  # whether libraries are asked for the same, by one caller

    @property
    def label(self) -> str:
        """For people."""
        connections = f"{self.connections} connection{'s' if self.connections > 1 else ''}"
        texts = f"{self.texts_per_request} text{'s' if self.texts_per_request > 1 else ''}"
        return f"{connections} x {texts}{', 128-256 tokens' if self.kind == 'long' else ''}"

    @property
    def short_label(self) -> str:
        """Connections x texts, for the head of a column."""
        long = " long" if self.kind == "long" else ""
        return f"{self.connections} x {self.texts_per_request}{long}"

    @property
    def in_flight(self) -> int:
        """Texts that the system has at once."""
        return self.connections * self.texts_per_request


LOADS = (
    Load("c1", 1, 1, in_process=True),
    Load("c2", 2, 1),
    Load("c3", 3, 1),
    Load("c4", 4, 1),
    Load("c16", 16, 1),
    Load("c64", 64, 1),
    Load("c256", 256, 1),
    Load("batch", 4, 32, in_process=True),
    Load("long", 16, 1, "long", in_process=True),
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


def run_calls(running: Running, load: Load, texts: Texts, seconds: float) -> dict[str, Any]:
    """The same figures of a worker, whose latency and answers are those of its calls.

    A caller of a library sends one text a call where the load has one in flight, else 32. The raw
    limit takes as many texts at once as the load has in flight, and says which way was fastest.
    """
    task = {
        "do": "measure",
        "texts": texts.of(load.kind),
        "texts_per_call": min(load.in_flight, TEXTS_PER_CALL),
        "in_flight": load.in_flight,
        "seconds": seconds,
    }
    before = cpu_seconds(running.process)
    answer: dict[str, Any] = running.ask(task)
    used = cpu_seconds(running.process) - before
    figures = {"answers": len(answer["call_seconds"]), "seconds": answer["seconds"]}
    way = {"way": answer["way"]} if "way" in answer else {}
    latencies = summarise_ms(answer["call_seconds"])
    return figures | way | latencies | per_text(answer["texts"], answer["seconds"], used)


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
