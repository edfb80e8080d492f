"""One round of the bench: every system started, checked, loaded and ended."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.closed_loop import (
    BY_NAME,
    CALLS,
    LOADS,
    Load,
    prepare_bodies,
    run_calls,
    run_load,
)
from benchmarks.load.texts import Texts
from benchmarks.report.results import Round, look_up
from benchmarks.systems.catalogue import ROOT, Route, System
from benchmarks.systems.running import NotMeasured, Running, running, smallest_cosine
from benchmarks.systems.usage import memory_mb

OPEN_LOOP = "open"
REST_SECONDS = 5  # after the last load, until memory is looked at once more
OPEN_LOOP_PERCENTS = (50, 80, 95, 120)
OVERLOAD_TIMES_LONGER = 3  # above 100 % a queue takes a while to fill
ONE_TEXT_LOADS = [
    load.name for load in LOADS if load.texts_per_request == 1 and load.kind == "short"
]
WARM_UP, WARM_UP_SECONDS = BY_NAME["c64"], 1


@dataclass(frozen=True)
class Plan:
    """What every system is given: which loads, of which texts, for how many seconds each."""

    loads: frozenset[str]
    texts: Texts
    seconds: int
    bodies: Path  # a folder for what is sent
    logs: Path  # a folder for what the systems print


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
    route = system.route
    with running(system, plan.logs / f"{system.name}.log") as started:
        cosine = smallest_cosine(started)
        if not cosine >= system.check.min_cosine:
            raise NotMeasured(f"its vectors differ: cosine {cosine:.6f} at the worst text.")
        loads = _run_loads(started, route, plan) if route else _run_calls(started, plan)
        figures = {
            "seconds_to_ready": started.seconds_to_ready,
            "cosine": cosine,
            "loads": loads,
        }
        if route and system.open_loop and OPEN_LOOP in plan.loads:
            figures["open_loop"] = _run_open_loop(started, route, plan, capacity(loads))
        figures["memory_mb"] = memory_mb(started.process)
        time.sleep(REST_SECONDS)
        return figures | {"memory_at_rest_mb": memory_mb(started.process)}


def _run_loads(started: Running, route: Route, plan: Plan) -> dict[str, Any]:
    def run(load: Load, seconds: int) -> dict[str, Any]:
        try:
            bodies = prepare_bodies(started.system.name, route, load, plan.texts, plan.bodies)
            return run_load(started, load, bodies, seconds)
        except NotMeasured as reason:  # the other loads may still do
            return {"not_measured": str(reason)}

    run(WARM_UP, WARM_UP_SECONDS)
    return {load.name: run(load, plan.seconds) for load in LOADS if load.name in plan.loads}


def _run_calls(started: Running, plan: Plan) -> dict[str, Any]:
    chosen = [calls for calls in CALLS if plan.loads.intersection(calls.beside)]
    for calls in chosen:
        run_calls(started, calls, plan.texts, 0)  # one call to warm up
    return {calls.name: run_calls(started, calls, plan.texts, plan.seconds) for calls in chosen}


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
    bodies = prepare_bodies(started.system.name, route, WARM_UP, plan.texts, plan.bodies)
    figures = {}
    for percent in OPEN_LOOP_PERCENTS:
        rate = most * percent / 100
        seconds = plan.seconds * (OVERLOAD_TIMES_LONGER if percent > 100 else 1)
        command = [sys.executable, "-m", "benchmarks.load.open_loop", started.url, str(bodies)]
        command += [f"--rate={rate}", f"--seconds={seconds}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise NotMeasured(f"the open-loop generator failed: {done.stderr[-200:]}")
        figures[str(percent)] = json.loads(done.stdout) | {"capacity": most}
    return figures
