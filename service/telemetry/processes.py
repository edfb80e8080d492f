"""One answer to a scrape from several processes: what each counted, summed by name and labels.

The engine process keeps what every HTTP process reported last, also of those that ended, so that no
counter goes back when one is replaced. prometheus_client's own way, files in a shared folder, has
neither gauges that call a function nor the metrics of a process.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Metric

from s2sent.service.telemetry.metrics import Metrics

# A family as JSON has it: name, help, type, and samples of name, labels and value.
Family = tuple[str, str, str, list[tuple[str, dict[str, str], float]]]

# Other gauges of an HTTP process say nothing: the engine process has the queue and the model.
GAUGES_THAT_ADD_UP = {
    "s2sent_requests_in_flight",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
}
REPORT_TIMEOUT_SECONDS = 1.0  # for the processes' reports; then the last ones count
ENGINE = "engine"


def name_of(process: int) -> str:
    """The name of HTTP process number ``process``, from 0, in metrics and log lines."""
    return f"http-{process + 1}"


def families_of(registry: CollectorRegistry) -> list[Family]:
    """All that a registry has."""
    return [
        (family.name, family.documentation, family.type,
         [(sample.name, sample.labels, sample.value) for sample in family.samples])
        for family in registry.collect()
    ]  # fmt: skip


def report_of(metrics: Metrics) -> bytes:
    """What an HTTP process reports: what it has counted so far, and gauges that add up, as JSON."""
    report = []
    for name, text, kind, samples in families_of(metrics.registry):
        if kind in ("counter", "histogram") or name in GAUGES_THAT_ADD_UP:
            report.append((name, text, kind, [sample for sample in samples if sample[2]]))
    return orjson.dumps(report)


class Reports:
    """What the HTTP processes have reported. Used on the event loop of the engine process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._last: dict[int, list[Family]] = {}
        self._ended: dict[int, list[list[Family]]] = {}  # of one process, each of its lives
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def take(self, process: int, report: bytes, *, asked: bool) -> None:
        """A process has reported, perhaps because it was asked to."""
        self._last[process] = orjson.loads(report)
        if asked and (waiting := self._waiting.pop(process, None)) and not waiting.done():
            waiting.set_result(None)

    def end(self, process: int) -> None:
        """A process has ended: what it counted stays."""
        last = [one for one in self._last.pop(process, []) if one[2] != "gauge"]
        before = self._ended.get(process, [])
        self._ended[process] = [_sum([*before, last])]
        if (waiting := self._waiting.pop(process, None)) and not waiting.done():
            waiting.set_result(None)

    async def collect(self, ask: Callable[[], Iterable[int]]) -> dict[str, list[list[Family]]]:
        """Everything that was counted, by process; ``ask`` asks processes, and tells which."""
        loop = asyncio.get_running_loop()
        asked = [self._waiting.setdefault(one, loop.create_future()) for one in ask()]
        if asked:
            await asyncio.wait(asked, timeout=REPORT_TIMEOUT_SECONDS)
        processes = {ENGINE: [families_of(self._metrics.registry)]}
        for process in sorted({*self._last, *self._ended}):
            lives = [*self._ended.get(process, []), self._last.get(process, [])]
            processes[name_of(process)] = lives
        return processes


class Merged:
    """What `Reports.collect` gave, as prometheus_client's encoders read a registry."""

    def __init__(self, processes: dict[str, list[list[Family]]]) -> None:
        self._processes = processes

    def collect(self) -> Iterable[Metric]:
        """The engine process's families with the others' samples, and two by process."""
        for name, text, kind, samples in _sum(
            [life for lives in self._processes.values() for life in lives]
        ):
            yield _metric(name, text, kind, samples)
        for name, of, text in (
            ("s2sent_process_cpu_seconds", "process_cpu_seconds_total", "Processor time"),
            ("s2sent_process_requests", "s2sent_requests_total", "HTTP requests answered"),
        ):
            by_process = [
                (f"{name}_total", {"process": process}, _total(lives, of))
                for process, lives in self._processes.items()
            ]
            yield _metric(name, f"{text}, by process.", "counter", by_process)


def _sum(reports: Iterable[list[Family]]) -> list[Family]:
    """The samples of all reports by name and labels; families in the order they come first."""
    families: dict[str, tuple[str, str]] = {}
    sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for report in reports:
        for name, text, kind, samples in report:
            families.setdefault(name, (text, kind))
            own = sums.setdefault(name, {})
            for sample, labels, value in samples:
                key = sample, tuple(labels.items())
                own[key] = own.get(key, 0.0) + value
    added = {
        name: [(one, dict(labels), value) for (one, labels), value in own.items()]
        for name, own in sums.items()
    }
    return [(name, text, kind, added[name]) for name, (text, kind) in families.items()]


def _total(lives: Iterable[list[Family]], name: str) -> float:
    samples = (sample for life in lives for *_, own in life for sample in own)
    return sum(value for one, _, value in samples if one == name)


def _metric(name: str, text: str, kind: str, samples: Iterable[tuple[str, Any, float]]) -> Metric:
    metric = Metric(name, text, kind)
    for one, labels, value in samples:
        metric.add_sample(one, labels, value)
    return metric
