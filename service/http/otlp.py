"""Sets up the OpenTelemetry SDK to send spans to a collector; imported only when tracing is on.

Sampler, headers, service name and batch size can be set with the SDK's ``OTEL_*`` variables
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
"""

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

TRACES_PATH = "/v1/traces"  # OTLP specification, OTLP/HTTP request


class HideQuery(SpanProcessor):
    """Redacts the query string, which no route reads but in which a client may put text."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if span.attributes and "url.query" in span.attributes:
            span.set_attribute("url.query", "REDACTED")


def collector_provider(endpoint: str, *, version: str) -> TracerProvider:
    """A provider that sends spans in batches, from a thread, to the collector at ``endpoint``.

    ``endpoint`` is the collector's base URL. When it is unavailable or too slow, spans are
    dropped; a request never waits.
    """
    given = Resource.create({"service.name": "s2sent", "service.version": version})
    provider = TracerProvider(
        resource=given.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
    )
    provider.add_span_processor(HideQuery())
    exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + TRACES_PATH)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
