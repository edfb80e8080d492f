"""API-key authentication: accepted keys, open paths, rate limits per key."""

import asyncio
import logging
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from starlette.types import Message, Receive, Scope, Send

from s2sent.service.access.api_keys import Key, KeyFile, key_line
from s2sent.service.access.auth import ApiKeys
from s2sent.service.app import create_app
from s2sent.service.settings import Settings, SettingsError
from tests.support.fake_engine import FakeEngine, client_of

PROTECTED = ["/info", "/v1/models", "/nope", "/v1/nope", "/docs/nope", "/playground/nope"]
OPEN = [
    *("/health", "/ping", "/ready", "/docs", "/docs/plain", "/openapi.json", "/metrics"),
    *("/", "/playground", "/static/playground.js"),
]


@pytest.mark.parametrize(
    ("authorization", "accepted"),
    [
        ("Bearer first", True),
        ("bearer second", True),
        ("Bearer  first ", True),
        ("Bearer third", False),
        ("Bearer firs", False),
        ("Bearer first second", False),
        ("Basic first", False),
        ("first", False),
        ("Bearer", False),
        ("Bearer \xff", False),
        ("", False),
        (None, False),
    ],
)
def test_any_of_the_keys_and_nothing_else_is_accepted(
    authorization: str | None, accepted: bool
) -> None:
    assert (ApiKeys(["first", "second"]).find(authorization) is not None) is accepted


async def test_a_key_beyond_ascii_is_accepted_in_utf_8() -> None:
    client = client_of(FakeEngine(), api_keys="schlüssel-à")  # its last byte is latin-1's NBSP
    for encoding, status in (("utf-8", 200), ("latin-1", 401)):
        header = b"Bearer " + "schlüssel-à".encode(encoding)
        response = await client.get("/info", headers={b"Authorization": header})
        assert response.status_code == status


@pytest.mark.parametrize("path", PROTECTED)
async def test_without_a_key_protected_paths_answer_401(path: str) -> None:
    client = client_of(FakeEngine(), api_keys="k1,k2")
    response = await client.get(path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("Bearer wrong", "The API key is not known"),
        ("bearer  ", "The API key is empty"),
        ("Basic azE6", "Authorization does not begin with Bearer"),
        ("k1", "Authorization does not begin with Bearer"),
    ],
)
async def test_what_is_wrong_with_a_header_is_said_without_repeating_it(
    header: str, problem: str
) -> None:
    client = client_of(FakeEngine(), api_keys="k1")
    response = await client.get("/info", headers={"Authorization": header})
    assert response.json()["error"] == f"{problem}. Send Authorization: Bearer <key>."


@pytest.mark.parametrize("path", ["/embed", "/", "/similarity", "/v1/embeddings", "/embeddings"])
async def test_work_needs_a_key_and_is_not_begun_without(path: str) -> None:
    engine = FakeEngine()
    client = client_of(engine, api_keys="k1,k2")
    body = {"inputs": "a", "input": "a"}
    if path == "/similarity":
        body = {"inputs": {"pairs": [["a", "b"]]}}  # type: ignore[dict-item]  # any JSON will do
    refused = await client.post(path, json=body, headers={"Authorization": "Bearer wrong"})
    assert (refused.status_code, engine.calls) == (401, [])
    accepted = await client.post(path, json=body, headers={"Authorization": "Bearer k2"})
    assert accepted.status_code == 200


async def test_a_refused_request_is_counted_under_its_route() -> None:
    client = client_of(FakeEngine(), api_keys="k1", metrics_require_key=False)
    await client.post("/embed", json={"inputs": "a"})
    counted = 's2sent_requests_total{route="/embed",status="401"} 1.0'
    assert counted in (await client.get("/metrics")).text


async def test_401_has_the_envelope_of_the_dialect() -> None:
    client = client_of(FakeEngine(), api_keys="k1")
    native, openai = await client.get("/info"), await client.get("/v1/models")
    assert native.json()["error_type"] == "Unauthorized"
    assert openai.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("path", OPEN)
async def test_probes_and_documentation_stay_open(path: str) -> None:
    response = await client_of(FakeEngine(), api_keys="k1").get(path)
    assert response.status_code == 200


async def test_metrics_can_be_protected() -> None:
    client = client_of(FakeEngine(), api_keys="k1", metrics_require_key=True)
    assert (await client.get("/metrics")).status_code == 401
    headers = {"Authorization": "Bearer k1"}
    assert (await client.get("/metrics", headers=headers)).status_code == 200


async def test_keys_of_the_settings_and_of_the_file_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(key_line("alice", "filed"))
    client = client_of(FakeEngine(), api_keys="plain", api_keys_file=tmp_path / "keys")
    for key, status in (("plain", 200), ("filed", 200), ("alice", 401)):
        response = await client.get("/info", headers={"Authorization": f"Bearer {key}"})
        assert response.status_code == status


def test_a_key_added_to_the_file_is_accepted_at_once(tmp_path: Path) -> None:
    """Also by an HTTP process that has just checked the file, which the others have not."""
    (tmp_path / "keys").write_text(key_line("alice", "old"))
    keys = ApiKeys([], KeyFile(tmp_path / "keys", clock=lambda: 0.0))
    assert keys.find("Bearer new") is None
    (tmp_path / "keys").write_text(key_line("bob", "new"))
    assert keys.find("Bearer new") is not None


def test_a_file_that_cannot_be_used_stops_the_start_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"api_keys_file: .*nowhere cannot be read"):
        client_of(FakeEngine(), api_keys_file=tmp_path / "nowhere")


async def test_the_log_names_the_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the name in the file, so that a key's last user can be found before it is taken out."""
    caplog.set_level(logging.INFO)
    (tmp_path / "keys").write_text(key_line("alice", "secret"))
    client = client_of(FakeEngine(), api_keys_file=tmp_path / "keys")
    await client.get("/info", headers={"Authorization": "Bearer secret"})
    (record,) = [record for record in caplog.records if record.getMessage() == "request"]
    assert vars(record)["fields"]["key"] == "alice"


async def test_a_quota_answers_429_in_the_dialect_until_it_has_filled_up(tmp_path: Path) -> None:
    """The engine is not asked, and Retry-After is the time the quota needs."""
    (tmp_path / "keys").write_text(key_line("alice", "secret", requests_per_minute=2))
    engine = FakeEngine()
    client = client_of(engine, api_keys_file=tmp_path / "keys")
    client.headers["Authorization"] = "Bearer secret"
    statuses = [(await client.post("/embed", json={"inputs": "a"})).status_code for _ in range(2)]
    native = await client.post("/embed", json={"inputs": "a"})
    openai = await client.post("/v1/embeddings", json={"input": "a"})
    assert (statuses, len(engine.calls)) == ([200, 200], 2)
    assert (native.status_code, openai.status_code) == (429, 429)
    assert native.json()["error_type"] == openai.json()["error"]["code"] == "QuotaExceeded"
    assert "2 requests per minute" in native.json()["error"]
    assert openai.json()["error"]["type"] == "rate_limit_error"
    assert 1 <= int(native.headers["retry-after"]) <= 30, "one of two a minute is there in 30 s"


async def test_tokens_of_an_answer_are_charged_and_a_failure_is_not(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(key_line("alice", "secret", tokens_per_minute=5))
    engine = FakeEngine()
    client = client_of(engine, api_keys_file=tmp_path / "keys")
    client.headers["Authorization"] = "Bearer secret"
    statuses = [
        (await client.post("/embed", json={"inputs": text})).status_code
        for text in ("", "a", "nine words and two special tokens are eleven tokens", "a")
    ]
    assert statuses == [400, 200, 200, 429], "3 of 5 tokens, then 11 of the 2 that are left"


async def test_tokens_are_charged_before_the_answer_begins() -> None:
    """Else a client's next request would be admitted, by another HTTP process, on their account."""
    events: list[object] = []

    class Limiter:
        async def admit(self, key: Key) -> None:
            events.append("admitted")

        async def charge(self, key: Key, tokens: int) -> None:
            await asyncio.sleep(0)
            events.append(tokens)

    app = create_app(Settings(api_keys=(SecretStr("k1"),)), engine=FakeEngine(), limiter=Limiter())

    async def observed(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            events.append(message["type"])
            await send(message)

        await app(scope, receive, sent)

    transport = httpx.ASGITransport(observed)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        await client.post("/embed", json={"inputs": "a"}, headers={"Authorization": "Bearer k1"})
    assert events == ["admitted", 3, "http.response.start", "http.response.body"]


async def test_probes_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(key_line("alice", "secret", requests_per_minute=1))
    client = client_of(FakeEngine(), api_keys_file=tmp_path / "keys")
    client.headers["Authorization"] = "Bearer secret"
    for path in OPEN * 2:
        assert (await client.get(path)).status_code == 200
    assert [(await client.get("/info")).status_code for _ in range(2)] == [200, 429]


async def test_any_authorization_is_accepted_when_no_key_is_configured() -> None:
    headers = {"Authorization": "Bearer whatever"}
    response = await client_of(FakeEngine()).post("/embed", json={"inputs": "a"}, headers=headers)
    assert response.status_code == 200
