"""Every Prometheus metric of the service, declared in one place.

The HTTP layer records requests, requests in flight, request duration, parsing and serialisation;
the engine records the rest. Names follow Prometheus' conventions (base units, ``_total`` for
counters; https://prometheus.io/docs/practices/naming/). Every series whose labels are known in
advance exists with the value 0 from the first scrape, so that an alert on its rate works before
its first event.
"""

import platform
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.registry import Collector

from s2sent.service.lanes import LANES
from s2sent.service.telemetry.deferred import DeferredCalls

STAGES = ("body", "tokenize", "queue", "inference", "serialize")
REJECTION_REASONS = ("queue_full", "concurrency", "draining", "not_ready", "quota", "memory")
FAILURE_REASONS = (
    *("inference_error", "non_finite", "all_zero", "wrong_shape"),
    *("engine_died", "stopped"),
)

FULL_DEPTH = "full"  # the label of a batch that runs every block; another has its last block

# Routes of the API and the statuses each of them can answer with. A path that is no route is
# counted as "other", so that a scan of random paths creates no series. So are bytes that are not a
# valid request.
ROUTES = (
    *("/embed", "/similarity", "/v1/embeddings", "/v1/models", "/tokenize", "/decode"),
    *("/explain", "/info", "/health", "/ready", "/metrics", "other"),
)
STATUSES = (200, 400, 401, 404, 405, 413, 415, 422, 424, 429, 431, 500, 503, 504)

# From half a millisecond (one short text on a GPU) to the longest deadline worth setting.
DURATION_BUCKETS = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
TEXT_BUCKETS = tuple(2.0**power for power in range(11))
TOKEN_BUCKETS = tuple(2.0**power for power in range(3, 18))
RATIO_BUCKETS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75)


class Metrics:
    """The service's metrics, in a registry of their own so that applications share no numbers."""

    def __init__(self) -> None:
        # A creation time beside each counter doubles the exposition, and no dashboard reads it.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library gives it no type
        self._registry = CollectorRegistry()
        # Gives what a scrape is answered with where that is more than the registry.
        self.gather: Callable[[], Awaitable[Collector]] | None = None
        self.deferred = DeferredCalls()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._declare_requests()
        self._declare_stages()
        self._declare_batches()
        self._declare_queue()
        self._declare_outcomes()
        self._declare_reuse()
        self._declare_engine()

    @property
    def registry(self) -> CollectorRegistry:
        """The registry, in which everything that was deferred is recorded."""
        self.deferred.run()
        return self._registry

    def _declare_requests(self) -> None:
        self.requests = self._counter(
            "s2sent_requests_total", "HTTP requests answered.", "route", "status"
        )
        durations = self._histogram(
            "s2sent_request_duration_seconds",
            "Time from a request's complete head to the end of its answer.",
            DURATION_BUCKETS,
            "route",
        )
        self.request_duration = {route: durations.labels(route) for route in ROUTES}
        for route in ROUTES:
            for status in STATUSES:
                self.requests.labels(route, status)
        self.requests_in_flight = self._gauge(
            "s2sent_requests_in_flight", "HTTP requests being handled now."
        )

    def _declare_stages(self) -> None:
        self.parse_duration = self._histogram(
            "s2sent_parse_duration_seconds",
            "Time a body took to become a request, once it was read.",
        )
        self.tokenize_duration = self._histogram(
            "s2sent_tokenize_duration_seconds", "Time a request took to be tokenised."
        )
        waits = self._histogram(
            "s2sent_queue_duration_seconds",
            "Time a request's texts waited, their mean.",
            DURATION_BUCKETS,
            "lane",
        )
        self.queue_duration = {lane: waits.labels(lane) for lane in LANES}
        self.inference_duration = self._histogram(
            "s2sent_inference_duration_seconds", "Run time of a request's batches, mean per text."
        )
        self.serialize_duration = self._histogram(
            "s2sent_serialize_duration_seconds", "Time a response took to be written as bytes."
        )

    def _declare_batches(self) -> None:
        self.batch_texts = self._histogram(
            "s2sent_batch_texts", "Texts in a batch of the engine.", TEXT_BUCKETS, "depth"
        )
        self.batch_tokens = self._histogram(
            "s2sent_batch_tokens", "Tokens in a batch, padding left out.", TOKEN_BUCKETS
        )
        self.batch_padding_ratio = self._histogram(
            "s2sent_batch_padding_ratio", "Padding's share of a batch's tokens.", RATIO_BUCKETS
        )
        self.batch_duration = self._histogram(
            "s2sent_batch_duration_seconds",
            "Time a batch ran in the encoder.",
            DURATION_BUCKETS,
            "depth",
        )
        for histogram in (self.batch_texts, self.batch_duration):
            histogram.labels(FULL_DEPTH)

    def _declare_queue(self) -> None:
        self.queue_texts = self._gauge("s2sent_queue_texts", "Texts waiting for a batch.", "lane")
        self.queue_tokens = self._gauge(
            "s2sent_queue_tokens", "Tokens waiting for a batch.", "lane"
        )
        self.queue_oldest_seconds = self._gauge(
            "s2sent_queue_oldest_seconds", "How long the oldest waiting request has waited.", "lane"
        )
        for gauge in (self.queue_texts, self.queue_tokens, self.queue_oldest_seconds):
            for lane in LANES:
                gauge.labels(lane)

    def _declare_outcomes(self) -> None:
        texts = self._counter("s2sent_texts_total", "Texts embedded.", "lane")
        tokens = self._counter("s2sent_tokens_total", "Tokens embedded, padding left out.", "lane")
        self.texts = {lane: texts.labels(lane) for lane in LANES}
        self.tokens = {lane: tokens.labels(lane) for lane in LANES}
        self.truncated_texts = self._counter(
            "s2sent_truncated_texts_total", "Texts cut to the model's maximum length."
        )
        self.rejected = self._counter(
            "s2sent_requests_rejected_total", "Requests refused unprocessed.", "reason"
        )
        self.cancelled = self._counter(
            "s2sent_requests_cancelled_total", "Requests whose client left.", "stage"
        )
        self.timed_out = self._counter(
            "s2sent_requests_timed_out_total", "Requests that met their deadline.", "stage"
        )
        self.failed = self._counter(
            "s2sent_requests_failed_total", "Accepted requests that failed.", "reason"
        )
        for reason in REJECTION_REASONS:
            self.rejected.labels(reason)
        for stage in STAGES:
            self.cancelled.labels(stage)
            self.timed_out.labels(stage)
        for reason in FAILURE_REASONS:
            self.failed.labels(reason)

    def _declare_reuse(self) -> None:
        self.coalesced_texts = self._counter(
            "s2sent_coalesced_texts_total", "Texts run once with an equal one of their batch."
        )
        self.cache_hits = self._counter("s2sent_cache_hits_total", "Texts found in the cache.")
        self.cache_misses = self._counter(
            "s2sent_cache_misses_total", "Texts looked for in the cache and not found."
        )
        self.cache_bytes = self._gauge("s2sent_cache_bytes", "Memory the cache takes.")

    def _declare_engine(self) -> None:
        self.engine_restarts = self._counter(
            "s2sent_engine_restarts_total", "Restarts of an inference thread that died."
        )
        self.http_restarts = self._counter(
            "s2sent_http_restarts_total", "HTTP processes that ended and were started again."
        )
        self.engine_ready = self._gauge(
            "s2sent_engine_ready", "1 when the service is ready for traffic, else 0."
        )
        self.engine_threads = self._gauge("s2sent_engine_threads", "Threads the encoder may use.")
        self.concurrent_runs = self._gauge(
            "s2sent_engine_concurrent_runs", "Batches the encoder may run side by side."
        )
        self.model_load_seconds = self._gauge(
            "s2sent_model_load_seconds", "Time to open, load and warm up the model."
        )
        model_labels = ("name", "fingerprint", "precision", "provider", "dim")
        self.model_info = self._gauge(
            "s2sent_model_info", "The model served; always 1.", *model_labels
        )
        self.build_info = self._gauge(
            "s2sent_build_info",
            "The program that runs; always 1.",
            *("version", "python", "onnxruntime"),
        )
        onnxruntime = _installed_version("onnxruntime", "onnxruntime-gpu")
        python = platform.python_version()
        self.build_info.labels(package_version(), python, onnxruntime).set(1)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(name, help_text, labels, registry=self._registry)

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(name, help_text, labels, registry=self._registry)

    def _histogram(
        self,
        name: str,
        help_text: str,
        buckets: Sequence[float] = DURATION_BUCKETS,
        *labels: str,
    ) -> Histogram:
        return Histogram(name, help_text, labels, buckets=buckets, registry=self._registry)


def package_version() -> str:
    """The installed version of this package, or ``unknown`` in a bare checkout."""
    return _installed_version("s2sent")


def _installed_version(*distributions: str) -> str:
    """The version of the first of these that is installed, or ``unknown``."""
    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "unknown"
