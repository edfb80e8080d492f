"""Where a request's time goes in the service, from its own histograms over a load.

    python -m benchmarks.studies.profile [--texts FILE] [--artifact FOLDER] [--seconds S]

Prints the mean of each stage in ms, at 1 and at 64 connections with one text a request. Needs wrk.
"""

import argparse
import shlex
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.load.closed_loop import BY_NAME, Load, run_load, write_bodies
from benchmarks.load.idle import measure_idle_ms, wait_until_idle
from benchmarks.load.texts import read_texts
from benchmarks.systems.ours import our_service
from benchmarks.systems.running import Running, running
from benchmarks.systems.system import DEFAULT_ARTIFACT, SERVICE_ROUTE

LOADS = (BY_NAME["c1"], BY_NAME["c64"])
WARM_UP_SECONDS = 1
REQUEST = "s2sent_request_duration_seconds"
STAGES = {
    "parse the body": "s2sent_parse_duration_seconds",
    "tokenise": "s2sent_tokenize_duration_seconds",
    "wait in the queue": "s2sent_queue_duration_seconds",
    "run": "s2sent_inference_duration_seconds",
    "serialise": "s2sent_serialize_duration_seconds",
}
ROUTE = "/embed"

Totals = dict[str, tuple[float, float]]  # by histogram: sum and count


def main() -> None:
    """Start the service, load it, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--artifact", type=Path, default=DEFAULT_ARTIFACT)
    parser.add_argument("--texts", type=Path, help="one text a line")
    parser.add_argument("--seconds", type=int, default=6, help="of each load")
    parser.add_argument("--serve", default="", help="options for the service")
    arguments = parser.parse_args()
    system = our_service(arguments.artifact, options=shlex.split(arguments.serve))
    with tempfile.TemporaryDirectory() as folder:
        bodies = Path(folder) / "bodies.jsonl"
        write_bodies(SERVICE_ROUTE, read_texts(arguments.texts), 1, bodies)
        with running(system, Path(folder) / "log") as service:
            idle_ms = measure_idle_ms(service)
            columns = []
            for load in LOADS:
                run_load(service, load, bodies, WARM_UP_SECONDS)
                wait_until_idle(service, idle_ms)
                columns.append(profile(service, load, bodies, arguments.seconds))
    print(f"| mean ms of a request | {' | '.join(load.label for load in LOADS)} |")
    print(f"|---|{'---:|' * len(LOADS)}")
    for stage in columns[0]:
        cells = [column[stage] for column in columns]
        print(f"| {stage} | {' | '.join('–' if c is None else f'{c:.3f}' for c in cells)} |")


def profile(service: Running, load: Load, bodies: Path, seconds: int) -> dict[str, float | None]:
    """The mean time of each stage under one load, in ms."""
    before = read_totals(_scrape(service))
    client_ms = run_load(service, load, bodies, seconds)["mean_ms"]
    return attribute(before, read_totals(_scrape(service)), client_ms)


def attribute(before: Totals, after: Totals, client_ms: float) -> dict[str, float | None]:
    """Split the client's mean latency; a stage without a histogram of its own is None.

    What no stage accounts for inside the service, and between it and the client, is what is left.
    """
    request_ms = _mean_ms(before, after, REQUEST)
    stages = {stage: _mean_ms(before, after, name) for stage, name in STAGES.items()}
    known = sum(value for value in stages.values() if value is not None)
    return {
        **stages,
        "the rest inside the service": None if request_ms is None else request_ms - known,
        "in the service": request_ms,
        "HTTP server, sockets and client": None if request_ms is None else client_ms - request_ms,
        "seen by the client": client_ms,
    }


def read_totals(metrics: str) -> Totals:
    """Sum and count of every histogram in Prometheus' text, of the route that is loaded."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.labels.get("route", ROUTE) != ROUTE:
                continue
            if sample.name.endswith("_sum"):
                sums[family.name] = sums.get(family.name, 0) + sample.value
            elif sample.name.endswith("_count"):
                counts[family.name] = counts.get(family.name, 0) + sample.value
    return {name: (sums[name], counts[name]) for name in sums}


def _mean_ms(before: Mapping[str, tuple[float, float]], after: Totals, name: str) -> float | None:
    if name not in after:
        return None
    (sum_before, count_before), (sum_after, count_after) = before[name], after[name]
    count = count_after - count_before
    return 1e3 * (sum_after - sum_before) / count if count else None


def _scrape(service: Running) -> str:
    with urllib.request.urlopen(f"{service.origin}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


if __name__ == "__main__":
    main()
