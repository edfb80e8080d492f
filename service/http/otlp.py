"""The OpenTelemetry SDK, set up to send spans to a collector; imported only when traces are on.

The sampler, the headers, the names of the service and the size of a batch are those of the SDK's
``OTEL_*`` variables
(https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/).
"""

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

TRACES_PATH = "/v1/traces"  # OTLP specification, OTLP/HTTP request


class HideQuery(SpanProcessor):
    """Blanks the query string, which no route reads: what a client puts there may be a text."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Called with a span that has its first attributes."""
        if span.attributes and "url.query" in span.attributes:
            span.set_attribute("url.query", "REDACTED")


def collector_provider(endpoint: str, *, version: str) -> TracerProvider:
    """Spans to the collector whose base URL is ``endpoint``, in batches, by a thread of its own.

    When the collector is away or too slow, spans are dropped; a request never waits.
    """
    given = Resource.create({"service.name": "s2sent", "service.version": version})
    provider = TracerProvider(
        resource=given.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
    )
    provider.add_span_processor(HideQuery())
    exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + TRACES_PATH)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
