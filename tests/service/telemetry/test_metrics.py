"""Metrics: every series exists before its first event, and values are exposed as recorded."""

from typing import Any

import pytest
from prometheus_client import generate_latest

from s2sent.service.lanes import LANES
from s2sent.service.telemetry.metrics import (
    FAILURE_REASONS,
    REJECTION_REASONS,
    ROUTES,
    STAGES,
    STATUSES,
    Metrics,
)

HISTOGRAMS = [
    *("parse_duration_seconds", "tokenize_duration_seconds"),
    "inference_duration_seconds",
    *("serialize_duration_seconds", "batch_tokens", "batch_padding_ratio"),
]
PLAIN = [
    *("requests_in_flight", "truncated_texts_total"),
    *("coalesced_texts_total", "cache_hits_total", "cache_misses_total", "cache_bytes"),
    *("engine_restarts_total", "engine_ready", "engine_threads", "engine_concurrent_runs"),
    "model_load_seconds",
]
BY_LANE = (
    *("queue_texts", "queue_tokens", "queue_oldest_seconds", "queue_duration_seconds_count"),
    *("texts_total", "tokens_total"),
)
SERIES: list[tuple[str, dict[str, Any]]] = [
    *((f"{name}_count", {}) for name in HISTOGRAMS),
    *((name, {}) for name in PLAIN),
    *((name, {"lane": lane}) for name in BY_LANE for lane in LANES),
    *(("requests_rejected_total", {"reason": reason}) for reason in REJECTION_REASONS),
    *(("requests_cancelled_total", {"stage": stage}) for stage in STAGES),
    *(("requests_timed_out_total", {"stage": stage}) for stage in STAGES),
    *(("requests_failed_total", {"reason": reason}) for reason in FAILURE_REASONS),
    *(
        ("requests_total", {"route": route, "status": str(status)})
        for route in ROUTES
        for status in STATUSES
    ),
    *(("request_duration_seconds_count", {"route": route}) for route in ROUTES),
    *((f"{name}_count", {"depth": "full"}) for name in ("batch_texts", "batch_duration_seconds")),
]


def test_every_series_is_zero_before_the_first_event() -> None:
    samples = (sample for family in Metrics().registry.collect() for sample in family.samples)
    zero = [(sample.name, sample.labels) for sample in samples if sample.value == 0]
    assert not [(name, labels) for name, labels in SERIES if (f"s2sent_{name}", labels) not in zero]


def test_two_services_in_one_process_do_not_share_numbers() -> None:
    one, other = Metrics(), Metrics()
    one.texts["bulk"].inc(3)
    assert other.registry.get_sample_value("s2sent_texts_total", {"lane": "bulk"}) == 0


def test_half_a_millisecond_and_a_minute_are_told_apart() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.0007, 59.0):
        metrics.request_duration["/embed"].observe(seconds)
    text = generate_latest(metrics.registry).decode()
    for bound, count in (("0.0005", 1), ("0.001", 2), ("30.0", 2), ("60.0", 3)):
        name = "s2sent_request_duration_seconds_bucket"
        assert f'{name}{{le="{bound}",route="/embed"}} {count}.0' in text


def test_exposition_names_the_build_and_the_process() -> None:
    text = generate_latest(Metrics().registry).decode()
    assert 's2sent_build_info{onnxruntime="' in text
    assert "process_resident_memory_bytes" in text
    assert "_created" not in text


def test_a_path_that_is_no_route_makes_no_series() -> None:
    with pytest.raises(KeyError):
        Metrics().request_duration["/random/path"]
