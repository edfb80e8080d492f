"""Every request gets an id, is counted once, and writes one log line."""

import logging
from typing import Any

import pytest
from httpx import AsyncClient
from prometheus_client import CollectorRegistry
from starlette.types import Message

from s2sent.service.api.embedding import Service
from s2sent.service.app import create_app
from s2sent.service.http.connection.protocol import METRICS_STATE
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics
from tests.support.fake_engine import FakeEngine, client_of


def registry_of(client: AsyncClient) -> CollectorRegistry:
    service: Service = client._transport.app.state.service  # type: ignore[attr-defined]  # httpx has no other way to the app it was given
    return service.metrics.registry


def fields_of(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    (record,) = [record for record in caplog.records if record.getMessage() == "request"]
    fields: dict[str, Any] = vars(record)["fields"]
    return fields


async def test_a_plain_request_id_is_taken_over() -> None:
    response = await client_of(FakeEngine()).get("/health", headers={"X-Request-Id": "abc-1.2_3"})
    assert response.headers["x-request-id"] == "abc-1.2_3"


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, 'a"b', "a\tb"])
async def test_any_other_request_id_is_replaced(given: str) -> None:
    client = client_of(FakeEngine())
    first = await client.get("/health", headers={"X-Request-Id": given})
    second = await client.get("/health", headers={"X-Request-Id": given})
    ids = {given, first.headers["x-request-id"], second.headers["x-request-id"]}
    assert len(ids) == 3


@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("POST", "/embed", "/embed", "200"),
        ("POST", "/", "/embed", "200"),
        ("POST", "/similarity", "/similarity", "422"),
        ("POST", "/v1/embeddings", "/v1/embeddings", "400"),
        ("POST", "/embeddings", "/v1/embeddings", "400"),
        ("GET", "/ping", "/health", "200"),
        ("HEAD", "/ping", "/health", "200"),
        ("GET", "/embed", "/embed", "405"),
        ("GET", "/", "other", "200"),
        ("GET", "/random/path", "other", "404"),
    ],
)
async def test_a_request_is_counted_once_under_its_route(
    method: str, path: str, route: str, status: str
) -> None:
    client = client_of(FakeEngine())
    await client.request(method, path, json={"inputs": "a"})
    registry = registry_of(client)
    labels = {"route": route, "status": status}
    assert registry.get_sample_value("s2sent_requests_total", labels) == 1
    count = "s2sent_request_duration_seconds_count"
    assert registry.get_sample_value(count, {"route": route}) == 1
    assert registry.get_sample_value("s2sent_requests_in_flight") == 0


async def test_serialisation_is_measured() -> None:
    client = client_of(FakeEngine())
    await client.post("/embed", json={"inputs": "a"})
    registry = registry_of(client)
    assert registry.get_sample_value("s2sent_parse_duration_seconds_count") == 1
    assert registry.get_sample_value("s2sent_serialize_duration_seconds_count") == 1


async def test_log_line_has_the_work_and_not_the_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await client_of(FakeEngine()).post("/embed", json={"inputs": ["secret word", "b"]})
    fields = fields_of(caplog)
    expected = {"method": "POST", "route": "/embed", "status": 200, "texts": 2, "tokens": 7}
    assert fields.items() >= (expected | {"queue_ms": 3.0, "inference_ms": 4.0}).items()
    assert fields["duration_ms"] > 0
    assert "secret" not in str([vars(record) for record in caplog.records])


async def test_probes_are_logged_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="s2sent.service")
    await client_of(FakeEngine()).get("/health")
    assert not [record for record in caplog.records if record.name.startswith("service")]


async def test_log_lines_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="s2sent.service")
    await client_of(FakeEngine(), log_requests=False).post("/embed", json={"inputs": "a"})
    assert not [record for record in caplog.records if record.name.startswith("service")]


async def test_a_bug_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    client = client_of(FakeEngine(error=RuntimeError("what went wrong")))
    response = await client.post("/embed", json={"inputs": "a"})
    assert response.status_code == 500
    assert "what went wrong" in caplog.text
    labels = {"route": "/embed", "status": "500"}
    assert registry_of(client).get_sample_value("s2sent_requests_total", labels) == 1


async def test_a_browser_may_call_from_an_allowed_origin_only() -> None:
    client = client_of(FakeEngine(), cors_allow_origins="https://a.example", api_keys="k")
    preflight = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    allowed = await client.options("/embed", headers=preflight | {"Origin": "https://a.example"})
    refused = await client.options("/embed", headers=preflight | {"Origin": "https://b.example"})
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
    assert "access-control-allow-origin" not in refused.headers


async def test_lifespan_messages_pass_through() -> None:
    app = create_app(Settings(), engine=FakeEngine())
    incoming = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[Message] = []

    async def receive() -> Message:
        return next(incoming)

    async def send(message: Message) -> None:
        sent.append(message)

    state: dict[str, object] = {}
    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}, receive, send)
    assert isinstance(state[METRICS_STATE], Metrics)  # for connections that send no request
    completed = ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert [message["type"] for message in sent] == completed
