"""Optional tracing: one OpenTelemetry span per embedding request, sent to an OTLP collector.

FastAPI creates the span, continues the caller's ``traceparent`` (W3C Trace Context) and records
route and status. This module configures that, and adds the engine's stages to the span. Without
``otlp_endpoint`` no span is created, the SDK is not imported and nothing is sent.
"""

import importlib.util
import sys
import threading
import time
from typing import TYPE_CHECKING

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace
from opentelemetry.trace import Span
from starlette.types import Scope

from s2sent.service.engine.types import EmbedResult
from s2sent.service.settings import Settings, SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

# The routes that embed, and their aliases. Probes would outnumber them, and any other path is
# text chosen by the client.
TRACED_PATHS = frozenset({"/", "/embed", "/similarity", "/embeddings", "/v1/embeddings"})

# The exporter retries a failed export, so the last one at shutdown needs a deadline.
FLUSH_TIMEOUT_SECONDS = 3.0

_NANOSECONDS = 1_000_000_000


def check_packages(settings: Settings) -> None:
    """Raise SettingsError where traces are asked for and the ``otel`` extra is not installed."""
    needed = ("opentelemetry.sdk", "opentelemetry.exporter")
    if settings.otlp_endpoint is not None and not all(map(importlib.util.find_spec, needed)):
        problem = (
            "otlp_endpoint is set, and the packages that send traces are not installed. "
            f"Run {sys.executable} -m pip install opentelemetry-sdk"
            " opentelemetry-exporter-otlp-proto-http, or unset S2SENT_OTLP_ENDPOINT."
        )
        raise SettingsError([problem])


def open_provider(settings: Settings, *, version: str) -> "TracerProvider | None":
    """The tracer provider that sends spans, or None without ``otlp_endpoint``.

    ``version`` is the service's. Raises SettingsError when the ``otel`` extra is not installed.
    """
    check_packages(settings)
    if settings.otlp_endpoint is None:
        return None
    # Imported here because the packages are optional and slow to import.
    from s2sent.service.http.otlp import collector_provider

    return collector_provider(str(settings.otlp_endpoint), version=version)


def close_provider(provider: "TracerProvider") -> None:
    """Send the remaining spans; blocks for at most FLUSH_TIMEOUT_SECONDS."""
    # The SDK's own limit is 30 s. A daemon thread does not delay the end of the process.
    closing = threading.Thread(target=provider.shutdown, name="trace-flush", daemon=True)
    closing.start()
    closing.join(FLUSH_TIMEOUT_SECONDS)


def telemetry_config(provider: "TracerProvider | None") -> TelemetryConfig:
    """FastAPI's telemetry settings: request spans if there is a provider, nothing else.

    Every option is set explicitly: by default, environment variables could make FastAPI send
    validation errors and exceptions, request texts included, to a collector that no setting names.
    """
    config = TelemetryConfig(
        tracing=provider is not None,
        metrics=False,
        logs=False,
        operation_spans=False,
        auto_configure=False,
        exclude=_is_not_traced,
    )
    if provider is not None:
        config["tracer_provider"] = provider
    return config


def trace_id_of(span: Span) -> str | None:
    """The id of a span's trace as 32 hexadecimal digits, None for a span that is not recorded."""
    context = span.get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def trace_stages(span: Span, result: EmbedResult, *, began_ns: int) -> None:
    """Add the engine's stages to the request's span, as an event at the end of each stage.

    ``began_ns`` is when the engine was called, in nanoseconds since the epoch. Durations are those
    of the metrics, means over the request's texts, and each stage starts where the previous one
    ended, which is exact for a request that ran in one batch.
    """
    if not span.is_recording():
        return
    span.set_attribute("s2sent.tokens", sum(result.tokens))
    span.set_attribute("s2sent.truncated", sum(result.truncated))
    ended_ns = began_ns
    for stage, seconds in (
        ("tokenize", result.tokenize_seconds),
        ("queue", result.queue_seconds),
        ("inference", result.inference_seconds),
    ):
        ended_ns += int(seconds * _NANOSECONDS)
        span.add_event(stage, {"duration_seconds": seconds}, ended_ns)


def trace_serialize(span: Span, seconds: float) -> None:
    span.add_event("serialize", {"duration_seconds": seconds}, time.time_ns())


def _is_not_traced(scope: Scope) -> bool:
    return scope["path"] not in TRACED_PATHS
