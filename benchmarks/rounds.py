"""One round of the bench: every system started, checked, loaded and ended."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.closed_loop import BY_NAME, LOADS, Load, prepare_bodies
from benchmarks.load.idle import measure_idle_ms
from benchmarks.load.texts import Texts
from benchmarks.load.window import Window, call_window, run_window
from benchmarks.report.results import Number, Round, look_up
from benchmarks.systems.running import NotMeasured, Running, running, smallest_cosine
from benchmarks.systems.system import ROOT, Route, System
from benchmarks.systems.usage import memory_mb

OPEN_LOOP = "open"
START_SECONDS, WAIT_SECONDS = 5, 1.5  # as the estimate has them
REST_SECONDS = 5  # after the last load, until memory is looked at once more
OPEN_LOOP_PERCENTS = (50, 80, 95, 120)
OVERLOAD_TIMES_LONGER = 3  # above 100 % a queue takes a while to fill
ONE_TEXT_LOADS = [
    load.name for load in LOADS if load.texts_per_request == 1 and load.kind == "short"
]
OPEN_LOOP_BODIES = BY_NAME["c64"]


@dataclass(frozen=True)
class Plan:
    """What every system is given: which loads, of which texts, and how long each is timed."""

    loads: frozenset[str]
    texts: Texts
    window: Window
    bodies: Path  # a folder for what is sent
    logs: Path  # a folder for what the systems print

    def loads_of(self, system: System) -> list[Load]:
        """The closed loops that ``system`` gets."""
        every = system.all_loads
        return [load for load in LOADS if load.name in self.loads and (every or load.in_process)]

    def expected_seconds(self, systems: Sequence[System]) -> float:
        """About how long one round takes; slow systems have longer windows than this counts."""
        return sum(map(self._expected, systems))

    def _expected(self, system: System) -> float:
        window = self.window
        extra = WAIT_SECONDS if system.route else 0.0
        cells = len(self.loads_of(system)) * (window.warm_up_seconds + window.seconds + extra)
        if system.open_loop and OPEN_LOOP in self.loads:
            windows = len(OPEN_LOOP_PERCENTS) - 1 + OVERLOAD_TIMES_LONGER
            cells += windows * window.seconds
        return START_SECONDS + cells + REST_SECONDS


def run_round(systems: Sequence[System], plan: Plan, not_measured: dict[str, str]) -> Round:
    """The figures of every system; one that cannot be measured leaves its reason instead.

    A system that has left one is not tried again.
    """
    figures: Round = {}
    for system in systems:
        if system.name in not_measured:
            continue
        print(f"{system.label} ...", file=sys.stderr, flush=True)
        try:
            figures[system.name] = _measure(system, plan)
        except NotMeasured as reason:
            not_measured[system.name] = str(reason)
            print(f"  not measured: {reason}", file=sys.stderr, flush=True)
    return figures


def _measure(system: System, plan: Plan) -> dict[str, Any]:
    """Start, check, load and end one system."""
    route, log = system.route, plan.logs / f"{system.name}.log"
    with running(system, log):
        pass  # its files are in memory now, as those are that another system has just read
    with running(system, log) as started:
        figures: dict[str, Any] = {"seconds_to_ready": started.seconds_to_ready}
        if system.check.texts:
            figures["cosine"] = cosine = smallest_cosine(started)
            if not cosine >= system.check.min_cosine:
                raise NotMeasured(f"its vectors differ: cosine {cosine:.6f} at the worst text.")
        if route:
            figures["idle_ms"] = measure_idle_ms(started)
        figures["loads"] = {
            load.name: _run_cell(started, load, figures.get("idle_ms"), plan)
            for load in plan.loads_of(system)
        }
        if route and system.open_loop and OPEN_LOOP in plan.loads:
            most = capacity(figures["loads"])
            figures["open_loop"] = _run_open_loop(started, route, plan, most)
        figures["memory_mb"] = memory_mb(started.process)
        time.sleep(REST_SECONDS)
        return figures | {"memory_at_rest_mb": memory_mb(started.process)}


def _run_cell(started: Running, load: Load, idle_ms: Number, plan: Plan) -> dict[str, Any]:
    """The figures of one load; where it cannot be measured, the reason: the others may still be."""
    route = started.system.route
    try:
        if route is None or idle_ms is None:
            return call_window(started, load, plan.texts, plan.window)
        bodies = prepare_bodies(started.system.name, route, load, plan.texts, plan.bodies)
        return run_window(started, load, bodies, idle_ms, plan.window)
    except NotMeasured as reason:
        return {"not_measured": str(reason)}


def capacity(loads: Round) -> float:
    """The most texts/s that a number of connections with one text a request had a moment ago.

    Raises `NotMeasured` when none of them was measured.
    """
    seen = [look_up(loads, name, "texts_per_second") for name in ONE_TEXT_LOADS]
    if not any(seen):
        raise NotMeasured("no load of one text a request was answered, so it has no capacity.")
    return max(filter(None, seen))


def _run_open_loop(started: Running, route: Route, plan: Plan, most: float) -> dict[str, Any]:
    """Each percentage of the capacity ``most``, in texts/s."""
    bodies = prepare_bodies(started.system.name, route, OPEN_LOOP_BODIES, plan.texts, plan.bodies)
    figures = {}
    for percent in OPEN_LOOP_PERCENTS:
        rate = most * percent / 100
        seconds = plan.window.seconds * (OVERLOAD_TIMES_LONGER if percent > 100 else 1)
        command = [sys.executable, "-m", "benchmarks.load.open_loop", started.url, str(bodies)]
        command += [f"--rate={rate}", f"--seconds={seconds}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise NotMeasured(f"the open-loop generator failed: {done.stderr[-200:]}")
        figures[str(percent)] = json.loads(done.stdout) | {"capacity": most}
    return figures
