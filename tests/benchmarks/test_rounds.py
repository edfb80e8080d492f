"""A round measures what works, and names why it could not measure the rest."""

import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as bench
from benchmarks.load.texts import Texts
from benchmarks.load.window import Window
from benchmarks.rounds import Plan, run_round
from benchmarks.systems.running import NotMeasured, running
from benchmarks.systems.system import PORT, Check, System, embed_route
from tests.support import http_embedder

TEXTS = Texts(["one", "two"], ["long"], {})
WINDOW = Window(seconds=1, answers=1, most_seconds=1, warm_up_seconds=1)
FAKE_SERVER = (sys.executable, http_embedder.__file__, "--port", PORT)


STUB = """
import json, sys
print("{}", flush=True)
for line in sys.stdin:
    task = json.loads(line)
    answer = [[3.0, 4.0]] if task["do"] == "embed" else {
        "texts": 2, "seconds": 0.5, "call_seconds": [0.5]}
    print(json.dumps(answer), flush=True)
"""


def a_worker(name: str, *command: str, embedding: Sequence[float] = (0.6, 0.8)) -> System:
    check = Check(["a text"], np.array([embedding], dtype=np.float32))
    return System(name, name, command or (sys.executable, "-c", STUB), check)


def test_a_round_measures_what_works_and_names_what_does_not(tmp_path: Path) -> None:
    systems = [
        a_worker("good"),
        a_worker("absent", "/nowhere/python"),
        a_worker("broken", sys.executable, "-c", "raise SystemExit('no such model')"),
        a_worker("wrong", embedding=(0.8, 0.6)),
    ]
    reasons: dict[str, str] = {}
    plan = Plan(frozenset(["c1", "batch"]), TEXTS, WINDOW, tmp_path, tmp_path)
    figures = run_round(systems, plan, reasons)
    assert list(figures) == ["good"]
    assert figures["good"]["cosine"] == pytest.approx(1)
    assert figures["good"]["loads"]["c1"]["texts_per_second"] == 4
    assert figures["good"]["memory_mb"]["pss"] > 1
    assert "make peers" in reasons["absent"]
    assert "no such model" in reasons["broken"]
    assert "cosine 0.96" in reasons["wrong"]
    assert list(run_round(systems, plan, reasons)) == ["good"]


@pytest.mark.usefixtures("any_machine_is_idle")
def test_a_server_is_given_each_load_when_it_is_idle(tmp_path: Path) -> None:
    if not shutil.which("wrk"):
        pytest.skip("Loads are sent by wrk.")
    check = Check(["a text"], np.array([[0.6, 0.8]], dtype=np.float32))
    system = System("fake", "fake", FAKE_SERVER, check, embed_route("/health"))
    plan = Plan(frozenset(["c1"]), TEXTS, WINDOW, tmp_path, tmp_path)
    figures = run_round([system], plan, {})["fake"]
    assert figures["idle_ms"] > 0
    assert figures["loads"]["c1"]["p99_ms"] >= figures["loads"]["c1"]["p50_ms"] > 0
    assert figures["loads"]["c1"]["waited_seconds"] >= 0


def test_a_cell_that_cannot_be_measured_leaves_its_reason(tmp_path: Path) -> None:
    window = Window(seconds=1, answers=5, most_seconds=1, warm_up_seconds=1)
    plan = Plan(frozenset(["c1"]), TEXTS, window, tmp_path, tmp_path)
    figures = run_round([a_worker("slow")], plan, {})
    reason = figures["slow"]["loads"]["c1"]["not_measured"]
    assert reason == "1 answers in 0 s at 1 connection x 1 text; a cell needs 5."


def test_a_library_is_given_the_loads_that_one_caller_can_make(tmp_path: Path) -> None:
    plan = Plan(frozenset(["c1", "c64", "batch"]), TEXTS, WINDOW, tmp_path, tmp_path)
    library = replace(a_worker("library"), all_loads=False)
    assert [load.name for load in plan.loads_of(library)] == ["c1", "batch"]
    assert [load.name for load in plan.loads_of(a_worker("raw"))] == ["c1", "c64", "batch"]


def test_the_expected_time_grows_with_systems_loads_and_seconds(tmp_path: Path) -> None:
    plan = Plan(frozenset(["c1", "batch"]), TEXTS, WINDOW, tmp_path, tmp_path)
    one = plan.expected_seconds([a_worker("a")])
    assert one > 2 * (1 + 1)
    assert plan.expected_seconds([a_worker("a"), a_worker("b")]) == 2 * one
    longer = replace(plan, window=replace(WINDOW, seconds=15))
    assert longer.expected_seconds([a_worker("a")]) == one + 2 * 14


def test_no_round_begins_that_the_budget_has_no_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "run_round", lambda _systems, _plan, _reasons: {})
    plan = Plan(frozenset(["c1"]), TEXTS, replace(WINDOW, seconds=3000), tmp_path, tmp_path)
    results = {"rounds": list[object](), "settings": {}, "not_measured": {}}
    options = Namespace(rounds=3, budget=1e-9, out=tmp_path)
    bench.run_rounds([a_worker("a")], plan, options, results)
    assert len(results["rounds"]) == 1
    assert "expected: 150 minutes or more, 3 rounds" in capsys.readouterr().err
    assert (tmp_path / "results.json").exists()


def test_a_system_is_ended_with_its_block(tmp_path: Path) -> None:
    with running(a_worker("good"), tmp_path / "log") as started:
        process = started.process
        assert process.is_running()
    assert not process.is_running()


def test_a_worker_that_ends_while_asked_is_reported(tmp_path: Path) -> None:
    system = a_worker("brief", sys.executable, "-c", "print('{}')")
    with (
        running(system, tmp_path / "log") as started,
        pytest.raises(NotMeasured, match="the worker ended"),
    ):
        started.embed(["a text"])
