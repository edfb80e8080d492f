"""One answer to a scrape from several processes, and counters that never go back."""

import asyncio
from collections.abc import Iterable

import pytest
from prometheus_client import generate_latest

from s2sent.service.telemetry import processes
from s2sent.service.telemetry.metrics import Metrics
from s2sent.service.telemetry.processes import Merged, Reports, report_of


def nobody() -> Iterable[int]:
    return ()


async def value(reports: Reports, name: str, **labels: str) -> float | None:
    families = Merged(await reports.collect(nobody)).collect()
    found = [
        one.value
        for family in families
        for one in family.samples
        if one.name == name and one.labels == labels
    ]
    assert len(found) < 2
    return found[0] if found else None


def answered(metrics: Metrics, count: int) -> bytes:
    metrics.requests.labels("/embed", 200).inc(count)
    metrics.requests_in_flight.set(1)
    metrics.engine_ready.set(1)  # what an HTTP process says of the engine does not count
    return report_of(metrics)


async def test_what_all_counted_is_summed_by_labels() -> None:
    own = Metrics()
    reports, labels = Reports(own), {"route": "/embed", "status": "200"}
    own.engine_ready.set(1)
    for process in range(2):
        reports.take(process, answered(Metrics(), 3), asked=False)
    assert await value(reports, "s2sent_requests_total", **labels) == 6
    assert await value(reports, "s2sent_requests_in_flight") == 2
    assert await value(reports, "s2sent_engine_ready") == 1
    assert await value(reports, "s2sent_process_requests_total", process="http-2") == 3
    assert await value(reports, "s2sent_process_requests_total", process="engine") == 0


async def test_histograms_stay_histograms() -> None:
    reports = Reports(Metrics())
    for process, seconds in enumerate((0.0001, 0.02)):
        metrics = Metrics()
        metrics.parse_duration.observe(seconds)
        reports.take(process, report_of(metrics), asked=False)
    text = generate_latest(Merged(await reports.collect(nobody))).decode()
    lines = [line for line in text.splitlines() if line.startswith("s2sent_parse_duration")]
    assert lines[0] == 's2sent_parse_duration_seconds_bucket{le="0.0005"} 1.0'
    assert 's2sent_parse_duration_seconds_bucket{le="+Inf"} 2.0' in lines
    assert "s2sent_parse_duration_seconds_count 2.0" in lines


async def test_what_a_process_counted_outlives_it() -> None:
    reports, labels = Reports(Metrics()), {"route": "/embed", "status": "200"}
    for life in range(3):
        reports.take(0, answered(Metrics(), 2), asked=False)
        assert await value(reports, "s2sent_requests_total", **labels) == 2 * (life + 1)
        reports.end(0)
        assert await value(reports, "s2sent_requests_total", **labels) == 2 * (life + 1)
        assert await value(reports, "s2sent_requests_in_flight") == 0
    assert await value(reports, "s2sent_process_requests_total", process="http-1") == 6
    reports.end(0)  # a process that never reported


async def test_a_scrape_waits_for_those_that_were_asked() -> None:
    reports, metrics = Reports(Metrics()), Metrics()
    reports.take(0, answered(metrics, 1), asked=False)
    scrape = asyncio.ensure_future(reports.collect(lambda: [0]))
    await asyncio.sleep(0)
    reports.take(0, answered(metrics, 1), asked=False)  # of before it was asked
    await asyncio.sleep(0.01)
    assert not scrape.done()
    reports.take(0, answered(metrics, 1), asked=True)
    families = (await scrape)["http-1"][-1]
    assert ("s2sent_requests_total", {"route": "/embed", "status": "200"}, 3.0) in [
        tuple(sample) for *_, samples in families for sample in samples
    ]
    ending = asyncio.ensure_future(reports.collect(lambda: [0]))
    await asyncio.sleep(0)
    reports.end(0)
    await ending


async def test_a_process_that_does_not_answer_counts_with_what_it_said_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "REPORT_TIMEOUT_SECONDS", 0.01)
    reports = Reports(Metrics())
    reports.take(0, answered(Metrics(), 4), asked=False)
    assert "http-1" in await reports.collect(lambda: [0])
