"""Tracing: off by default; when on, one span per request that contains no request text."""

import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from s2sent.model.artifact.reader import Artifact
from s2sent.service.app import create_app
from s2sent.service.errors import Overloaded
from s2sent.service.http import tracing
from s2sent.service.http.otlp import HideQuery, collector_provider
from s2sent.service.http.tracing import close_provider, open_provider
from s2sent.service.settings import Settings, SettingsError
from s2sent.service.settings_loading import load_settings
from s2sent.service.telemetry.logs import logging_to
from tests.support.fake_engine import FakeEngine, InProcess
from tests.support.server_process import running_server
from tests.support.serving import serving

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}


class Traced:
    """A client of an application whose spans stay in memory."""

    def __init__(self, engine: FakeEngine, **settings: Any) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(HideQuery())
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        app = create_app(Settings(**settings), engine=engine, tracer_provider=provider)
        transport = InProcess(app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def attributes(self) -> dict[str, Any]:
        (span,) = self.spans()
        return dict(span.attributes or {})


async def test_a_request_makes_one_span_that_says_what_it_cost() -> None:
    traced = Traced(FakeEngine())
    await traced.client.post("/embed", json={"inputs": ["two words", "one"]})
    (span,) = traced.spans()
    assert span.name == "POST /embed"
    said = traced.attributes()
    work = {key: value for key, value in said.items() if key.startswith("s2sent.")}
    assert work == {"s2sent.texts": 2, "s2sent.tokens": 7, "s2sent.truncated": 0}
    assert (said["http.route"], said["http.response.status_code"]) == ("/embed", 200)


async def test_the_stages_are_events_in_their_order() -> None:
    traced = Traced(FakeEngine())
    await traced.client.post("/embed", json={"inputs": "a"})
    (span,) = traced.spans()
    *engine, serialize = span.events
    assert [event.name for event in engine] == ["tokenize", "queue", "inference"]
    assert [(event.attributes or {})["duration_seconds"] for event in engine] == [
        *(0.002, 0.003, 0.004)
    ]
    tokenized, queued, inferred = (event.timestamp for event in engine)
    assert (queued - tokenized, inferred - queued) == (3_000_000, 4_000_000)  # nanoseconds
    assert serialize.name == "serialize"


@pytest.mark.parametrize("path", ["/similarity", "/v1/embeddings", "/embeddings", "/"])
async def test_every_route_that_embeds_is_traced(path: str) -> None:
    traced = Traced(FakeEngine())
    inputs: Any = {"source_sentence": "a", "sentences": ["b"]} if path == "/similarity" else "a"
    field = "input" if "embeddings" in path else "inputs"
    await traced.client.post(path, json={field: inputs, "model": "m"})
    assert traced.attributes()["s2sent.tokens"] > 0


async def test_the_callers_trace_goes_on() -> None:
    traced = Traced(FakeEngine())
    await traced.client.post("/embed", json={"inputs": "a"}, headers=TRACEPARENT)
    (span,) = traced.spans()
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT_ID


async def test_a_caller_that_does_not_sample_is_obeyed() -> None:
    traced = Traced(FakeEngine())
    header = TRACEPARENT["traceparent"].removesuffix("01") + "00"
    await traced.client.post("/embed", json={"inputs": "a"}, headers={"traceparent": header})
    assert traced.spans() == []


async def test_the_log_line_has_the_trace_id() -> None:
    stream = io.StringIO()
    with logging_to(stream, "info"):
        await Traced(FakeEngine()).client.post("/embed", json={"inputs": "a"}, headers=TRACEPARENT)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["trace_id"] for line in lines if line["message"] == "request"] == [TRACE_ID]


async def test_a_refusal_is_a_span_with_its_status_and_its_number_of_texts() -> None:
    traced = Traced(FakeEngine(error=Overloaded("Full.", retry_after_seconds=1)))
    await traced.client.post("/embed", json={"inputs": ["a", "b"]})
    said = traced.attributes()
    assert (said["http.response.status_code"], said["s2sent.texts"]) == (429, 2)


@pytest.mark.parametrize("error", [None, RuntimeError("secret")])
async def test_no_text_is_ever_in_a_span(error: Exception | None) -> None:
    traced = Traced(FakeEngine(error=error))
    for body in ({"inputs": "secret"}, {"inputs": {"secret": "secret"}}, {"secret": 1}):
        await traced.client.post("/embed?secret=secret", json=body)
    await traced.client.post("/secret", json={})
    spans = traced.spans()
    assert len(spans) == 3
    assert "secret" not in "".join(span.to_json() for span in spans)


@pytest.mark.parametrize("path", ["/health", "/ping", "/ready", "/metrics", "/unknown"])
async def test_probes_and_unknown_paths_make_no_span(path: str) -> None:
    traced = Traced(FakeEngine())
    await traced.client.get(path)
    assert traced.spans() == []


def test_tracing_leaves_the_path_of_a_request_through_the_application_as_it_is() -> None:
    """So what is measured without traces holds with them."""

    def layers(provider: TracerProvider | None) -> list[type]:
        app = create_app(Settings(), engine=FakeEngine(), tracer_provider=provider)
        layer: Any = app.build_middleware_stack()
        found = []
        while layer is not None:
            found.append(type(layer))
            layer = getattr(layer, "app", None) or getattr(layer, "_app", None)
        return found

    assert APIRouter in layers(None)
    assert layers(TracerProvider(shutdown_on_exit=False)) == layers(None)


async def test_off_means_that_nothing_is_traced() -> None:
    seen: list[bool] = []

    class Engine(FakeEngine):
        async def embed(self, *args: Any, **options: Any) -> Any:
            seen.append(trace.get_current_span().get_span_context().is_valid)
            return await super().embed(*args, **options)

    app = create_app(Settings(), engine=Engine())
    transport = InProcess(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post("/embed", json={"inputs": "a"}, headers=TRACEPARENT)
    assert response.status_code == 200
    assert seen == [False]


def test_off_means_that_the_sdk_is_not_imported_whatever_the_environment_says() -> None:
    code = (
        "import sys; from s2sent.service.app import create_app\n"
        "from s2sent.service.settings import Settings\n"
        "from fastapi.testclient import TestClient\n"
        "from tests.support.fake_engine import FakeEngine, InProcess\n"
        "with TestClient(create_app(Settings(), engine=FakeEngine())) as c: c.get('/info')\n"
        "sys.exit(any(name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))"
        " for name in sys.modules))"
    )
    environment = {
        "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    run = subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=False)
    assert run.returncode == 0


def test_a_missing_extra_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    settings = load_settings(otlp_endpoint="http://127.0.0.1:4318")
    with pytest.raises(SettingsError, match=r"-m pip install opentelemetry-sdk .*, or unset"):
        open_provider(settings, version="1")


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector:4317", "http://"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(SettingsError, match=r"otlp_endpoint \(S2SENT_OTLP_ENDPOINT\)"):
        load_settings(otlp_endpoint=endpoint)


class Collector:
    """A loopback OTLP/HTTP receiver; ``gate`` holds its answers back while it is clear."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.paths.append(self.path)
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                collector.gate.wait()
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    receiver = Collector()
    with serving(receiver.server):
        yield receiver
        receiver.gate.set()


def test_the_last_spans_of_a_server_that_is_stopped_reach_the_collector(
    collector: Collector, tiny_artifact: Artifact
) -> None:
    with running_server(tiny_artifact.path, "--otlp-endpoint", collector.url) as server:
        for _ in range(5):
            server.client.post("/embed", json={"inputs": "a"}, headers=TRACEPARENT)
        assert server.stop() == 0
    spans = collector.spans()
    assert [span.name for span in spans] == ["POST /embed"] * 5
    assert {span.trace_id.hex() for span in spans} == {TRACE_ID}
    assert {*collector.paths} == {"/v1/traces"}
    resource = collector.requests[0].resource_spans[0].resource
    assert ("service.name", "s2sent") in [
        (a.key, a.value.string_value) for a in resource.attributes
    ]
    assert [line["trace_id"] for line in server.log if line["message"] == "request"] == [
        TRACE_ID
    ] * 5


def test_without_its_collector_a_server_answers_and_ends_in_order(tiny_artifact: Artifact) -> None:
    nobody = "http://127.0.0.1:1"
    with running_server(tiny_artifact.path, "--otlp-endpoint", nobody) as server:
        statuses = {
            server.client.post("/embed", json={"inputs": "a"}).status_code for _ in range(20)
        }
        assert server.stop() == 0
    assert statuses == {200}


def test_the_end_does_not_wait_for_the_answer_of_a_collector_that_hangs(
    collector: Collector, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_TIMEOUT_SECONDS", 0.1)
    collector.gate.clear()
    provider = collector_provider(collector.url, version="1")
    with caplog.at_level(logging.CRITICAL):
        provider.get_tracer("test").start_span("hanging").end()
        close_provider(provider)
        (flush,) = [each for each in threading.enumerate() if each.name == "trace-flush"]
        assert flush.daemon  # the process can end without it
        collector.gate.set()
        flush.join()
    assert len(collector.requests) == 1


def test_the_name_of_the_service_can_be_given_by_the_sdks_own_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "embeddings-gpu")
    provider = collector_provider("http://127.0.0.1:1", version="1.2")
    close_provider(provider)
    assert provider.resource.attributes["service.name"] == "embeddings-gpu"
    assert provider.resource.attributes["service.version"] == "1.2"
