"""The bench's arithmetic, its open-loop generator, and what it does with a system that fails."""

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.loads import LOADS, per_text, summarise_ms, write_bodies
from benchmarks.open_loop import Generator, Request, schedule, summarise
from benchmarks.profile import attribute, read_totals
from benchmarks.report import RESULTS, write_report
from benchmarks.results import best_infinity, look_up, of_infinity, over_rounds, ratio
from benchmarks.rounds import Plan, run_round
from benchmarks.running import NotMeasured, running
from benchmarks.soak_memory import growth_percent
from benchmarks.systems import Check, Route, System
from benchmarks.targets import Finding, Target, find
from benchmarks.texts import Texts, join_long_texts
from benchmarks.worker import measure

TEXTS = Texts(["one", "two"], ["long"], {})
ROUTE = Route("/embed", "/ready", lambda texts: {"inputs": texts}, lambda rows: list(rows))


def count_words(texts: Sequence[str]) -> list[int]:
    """Tokens as a tokenizer counts them: a word each, and two special ones."""
    return [len(text.split()) + 2 for text in texts]


def test_long_texts_have_128_to_256_tokens_and_only_whole_texts() -> None:
    texts = [" ".join(["word"] * length) for length in (1, 7, 30, 128, 200)]
    long = join_long_texts(texts, count_words, num_texts=50)
    assert all(128 <= length <= 256 for length in count_words(long))
    assert len(set(count_words(long))) > 10
    assert long == join_long_texts(texts, count_words, num_texts=50)


def test_texts_that_are_all_too_long_to_join_are_refused() -> None:
    with pytest.raises(ValueError, match="128 tokens or fewer"):
        join_long_texts(["word " * 200], count_words)


def test_bodies_go_through_the_texts_in_their_order(tmp_path: Path) -> None:
    path = write_bodies(ROUTE, ["a", "b", "c"], 2, tmp_path / "bodies")
    bodies = [json.loads(line)["inputs"] for line in path.read_text().splitlines()]
    assert bodies[:3] == [["a", "b"], ["c", "a"], ["b", "c"]]
    assert len(bodies) == 256


def test_percentiles_are_milliseconds() -> None:
    figures = summarise_ms([number / 1000 for number in range(1001)])
    assert figures == pytest.approx({"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p99.9_ms": 999})
    assert summarise_ms([0.25])["p99_ms"] == 250
    assert summarise_ms([]) == {}


def test_a_thousand_texts_cost_what_they_took() -> None:
    assert per_text(500, 2, 3) == {"texts_per_second": 250, "cpu_seconds_per_1000_texts": 6}


def test_a_worker_calls_until_the_time_is_over_and_at_least_once() -> None:
    calls: list[list[str]] = []
    task = {"texts": ["a", "b", "c"], "texts_per_call": 2, "seconds": 0}
    answer = measure(lambda texts: calls.append(list(texts)), task)
    assert calls == [["a", "b"]]
    assert (answer["texts"], len(answer["call_seconds"])) == (2, 1)


def a_round(ours: float, torch: float, optimum: float) -> dict[str, Any]:
    def figures(value: float) -> dict[str, Any]:
        return {"loads": {"c64": {"texts_per_second": value}}}

    return {
        "s2sent": figures(ours),
        "infinity-torch": figures(torch),
        "infinity-optimum": figures(optimum),
    }


def test_ratios_are_taken_within_a_round_and_then_their_median() -> None:
    """The ratio of the medians would be 2; a slow spell of the machine hits both."""
    rounds = [a_round(300, 100, 50), a_round(90, 20, 30), a_round(200, 100, 150)]
    seen = over_rounds(
        {"rounds": rounds}, lambda each: of_infinity(each, "loads", "c64", "texts_per_second")
    )
    assert seen == 3


def test_the_better_engine_is_the_faster_or_the_leaner_one() -> None:
    path = ("loads", "c64", "texts_per_second")
    assert best_infinity(a_round(1, 2, 3), *path) == 3
    assert best_infinity(a_round(1, 2, 3), *path, least=True) == 2


def test_what_was_not_measured_is_none_all_the_way() -> None:
    assert look_up({"a": {"b": 1}}, "a", "c") is None
    assert look_up({"a": None}, "a", "b") is None
    assert ratio(None, 1) is None
    assert over_rounds({"rounds": [{}]}, lambda each: look_up(each, "s2sent", "cosine")) is None
    assert best_infinity({}, "cosine") is None


@pytest.mark.parametrize(
    ("sense", "seen", "is_met"),
    [
        (">=", 3.0, True),
        (">=", 2.99, False),
        ("<=", 3.0, True),
        ("<=", 3.01, False),
        ("<=", None, None),
    ],
)
def test_a_target_is_met_at_its_bound(sense: Any, seen: float | None, is_met: bool | None) -> None:
    target = Target("speed", sense, 3.0, "x", lambda _results: seen)
    assert Finding(target, seen).is_met is is_met


def test_every_target_follows_from_the_numbers() -> None:
    """With numbers that just meet each one, all are met; with none, none is judged."""
    ours = {
        "seconds_to_ready": 1.0,
        "memory_mb": {"pss": 40.0},
        "loads": {
            "c1": {"p50_ms": 3.0},
            "c64": {"texts_per_second": 900.0},
            "batch": {"texts_per_second": 950.0},
        },
        "open_loop": {
            "80": {"p99_ms": 15.0},
            "120": {
                "capacity": 1000.0,
                "goodput_per_second": 950.0,
                "refusal_p99_ms": 10.0,
                "lost": 0,
            },
        },
    }
    infinity = {
        "memory_mb": {"pss": 100.0},
        "loads": {
            "c1": {"p50_ms": 10.0},
            "c64": {"texts_per_second": 300.0},
            "batch": {"texts_per_second": 380.0},
        },
    }
    raw = {"loads": {"one": {"p50_ms": 2.2}, "batches": {"texts_per_second": 1000.0}}}
    results = {
        "rounds": [{"s2sent": ours, "infinity-torch": infinity, "raw": raw}],
        "soak_memory": {"growth_percent": 2.0},
        "selector_share": {"share_percent": 1.0},
    }
    assert [finding.target.what for finding in find(results) if not finding.is_met] == []
    assert {finding.is_met for finding in find({"rounds": []})} == {None}


def test_a_report_shows_what_was_measured_and_says_what_was_not(tmp_path: Path) -> None:
    loads = {load.name: {"texts_per_second": 123.4, "p50_ms": 5.0, "p99_ms": 9.0} for load in LOADS}
    system = {"label": "S2Sent", "is_server": True, "command": ["serve"], "versions": {}}
    results = {
        "date": "2026-01-01",
        "commit": "0123456789abc",
        "settings": {"command": "python -m benchmarks", "seconds": 2},
        "machine": {"cpu": "a CPU", "cores": 2, "memory_gb": 8, "system": "Linux"},
        "tokens": {kind: {"mean": 14, "longest": 40} for kind in ("short", "long")},
        "systems": {"s2sent": system, "raw": system | {"label": "raw limit"}},
        "not_measured": {"raw": "it is not there."},
        "rounds": [{"s2sent": {"loads": loads, "open_loop": {"50": {"p99_ms": 8.0}}}}],
    }
    (tmp_path / RESULTS).write_text(json.dumps(results))
    (tmp_path / "soak_memory.json").write_text('{"growth_percent": 2.5}')
    text = write_report(tmp_path)
    assert "| S2Sent | 123 | 123 | 123 | 123 | 123 | 123 |" in text
    assert "- raw limit: it is not there." in text
    assert "| 2.50 % | **missed** |" in text
    assert "not a result" in text
    assert (tmp_path / "results.md").read_text() == text
    assert "<svg" in (tmp_path / "plot.svg").read_text()


class Server(ThreadingHTTPServer):
    """Answers a request with the status that is its body; holds the answers to "wait" together."""

    daemon_threads = True

    def __init__(self, together: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.barrier = threading.Barrier(together, timeout=30)
        self.url = f"http://127.0.0.1:{self.server_port}/embed"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body == "lose":
            self.close_connection = True
            return
        if body == "wait":
            self.server.barrier.wait()
        self.send_response(body if isinstance(body, int) else 200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_arguments: Any) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(getattr(request, "param", 1)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def send(server: Server, times: Sequence[float], *bodies: int | str) -> tuple[list[Request], int]:
    generator = Generator(server.url, [json.dumps(body).encode() for body in bodies])
    return generator.run(times), generator.connections_opened


def test_a_schedule_is_a_poisson_process_of_its_rate() -> None:
    times = schedule(1000, 10, seed=1)
    gaps = np.diff(times)
    assert times == sorted(times) == schedule(1000, 10, seed=1) != schedule(1000, 10, seed=2)
    assert times[-1] < 10
    assert len(times) == pytest.approx(10_000, rel=0.05)  # five standard deviations
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)


def test_requests_never_leave_early_and_all_are_answered(server: Server) -> None:
    times = schedule(200, 0.5, seed=0)
    requests, _ = send(server, times, 200)
    assert [r.intended for r in requests] == pytest.approx(times)
    assert all(r.intended <= r.sent < r.answered for r in requests)
    assert {r.status for r in requests} == {200}


def test_latency_counts_from_the_intended_time(server: Server) -> None:
    """A request that was due two seconds before it could be sent took two seconds at least."""
    requests, _ = send(server, [-2.0], 200)
    figures = summarise(requests, 1)
    assert figures["p50_ms"] >= 2000
    assert figures["lateness_p50_ms"] >= 2000


@pytest.mark.parametrize("server", [5], indirect=True)
def test_busy_connections_are_joined_by_new_ones(server: Server) -> None:
    """The server answers only when five requests have come."""
    requests, connections = send(server, [0.0] * 5, "wait")
    assert [r.status for r in requests] == [200] * 5
    assert connections == 5


def test_an_idle_connection_is_used_again(server: Server) -> None:
    requests, connections = send(server, [0.0, 0.3, 0.6], 200)
    assert [r.status for r in requests] == [200] * 3
    assert connections == 1


def test_refused_failed_and_lost_requests_are_counted_apart(server: Server) -> None:
    requests, _ = send(server, [0.0, 0.1, 0.2, 0.3], 200, 429, 500, "lose")
    figures = summarise(requests, 1)
    names = ("sent", "good", "refused", "failed", "lost")
    assert [figures[name] for name in names] == [4, 1, 1, 1, 1]
    assert figures["goodput_per_second"] == 1
    assert figures["refusal_p99_ms"] > 0


def test_goodput_counts_what_came_while_the_load_lasted() -> None:
    requests = [Request(0.1, 0.1, answered, 200) for answered in (0.5, 1.5, 2.5)]
    assert summarise(requests, 2)["goodput_per_second"] == 1
    assert summarise(requests, 2)["p50_ms"] == pytest.approx(1400)


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
    plan = Plan(frozenset(["c1", "batch"]), TEXTS, 1, tmp_path, tmp_path)
    figures = run_round(systems, plan, reasons)
    assert list(figures) == ["good"]
    assert figures["good"]["cosine"] == pytest.approx(1)
    assert figures["good"]["loads"]["one"]["texts_per_second"] == 4
    assert figures["good"]["memory_mb"]["pss"] > 1
    assert "make peers" in reasons["absent"]
    assert "no such model" in reasons["broken"]
    assert "cosine 0.96" in reasons["wrong"]
    assert list(run_round(systems, plan, reasons)) == ["good"]


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


def test_growth_is_from_the_second_quarter_to_the_last() -> None:
    assert growth_percent([1, 9, 100, 100, 130, 140, 110, 110]) == pytest.approx(10)


METRICS = """\
# TYPE s2sent_request_duration_seconds histogram
s2sent_request_duration_seconds_bucket{route="/embed",le="+Inf"} COUNT
s2sent_request_duration_seconds_sum{route="/embed"} SUM
s2sent_request_duration_seconds_count{route="/embed"} COUNT
s2sent_request_duration_seconds_bucket{route="/metrics",le="+Inf"} 7
s2sent_request_duration_seconds_sum{route="/metrics"} 99
s2sent_request_duration_seconds_count{route="/metrics"} 7
# TYPE s2sent_inference_duration_seconds histogram
s2sent_inference_duration_seconds_bucket{le="+Inf"} COUNT
s2sent_inference_duration_seconds_sum RUN
s2sent_inference_duration_seconds_count COUNT
"""


def test_a_profile_splits_the_client_s_latency_and_leaves_nothing_out() -> None:
    """Ten requests of 4 ms, 3 of them in the run, seen as 5 ms; other routes do not count."""
    before = METRICS.replace("SUM", "1.0").replace("RUN", "0.5").replace("COUNT", "20")
    after = METRICS.replace("SUM", "1.04").replace("RUN", "0.53").replace("COUNT", "30")
    stages = attribute(read_totals(before), read_totals(after), client_ms=5.0)
    assert stages["run"] == pytest.approx(3)
    assert stages["the rest inside the service"] == pytest.approx(1)
    assert stages["HTTP server, sockets and client"] == pytest.approx(1)
    assert stages["tokenise"] is None
