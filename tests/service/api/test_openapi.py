"""The OpenAPI document declares every status, both error envelopes and every header."""

from typing import Any

import pytest

from s2sent.service import errors
from s2sent.service.api.openapi import EMBEDDING_ERRORS
from tests.support.fake_engine import FakeEngine, client_of

NATIVE = ["/embed", "/similarity"]
TOKENIZING = ["/tokenize", "/decode"]
PATHS = {*NATIVE, *TOKENIZING, "/explain", "/v1/embeddings", "/v1/models"} | {
    *("/info", "/health", "/ready", "/metrics"),
}
EMBEDDING_HEADERS = {
    *("x-compute-type", "x-compute-time", "x-compute-characters", "x-compute-tokens"),
    *("x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"),
    *("x-truncated", "x-model-fingerprint"),
}


async def document() -> dict[str, Any]:
    content: dict[str, Any] = (await client_of(FakeEngine()).get("/openapi.json")).json()
    return content


def schema_name(response: dict[str, Any]) -> str:
    reference: str = response["content"]["application/json"]["schema"]["$ref"]
    return reference.rpartition("/")[2]


async def test_every_route_is_there() -> None:
    assert set((await document())["paths"]) == PATHS


async def test_every_reference_leads_somewhere() -> None:
    whole = await document()
    references = set(_references(whole))
    known = {f"#/components/schemas/{name}" for name in whole["components"]["schemas"]}
    assert references
    assert references <= known


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in _references(value)]
    if isinstance(node, list):
        return [found for value in node for found in _references(value)]
    return []


@pytest.mark.parametrize("path", NATIVE)
async def test_native_routes_declare_every_status_they_answer(path: str) -> None:
    responses = (await document())["paths"][path]["post"]["responses"]
    assert set(responses) == {"200", *(str(kind.status) for kind in EMBEDDING_ERRORS)}
    errors_declared = {status: r for status, r in responses.items() if status != "200"}
    assert {schema_name(r) for r in errors_declared.values()} == {"NativeError"}


@pytest.mark.parametrize("path", TOKENIZING)
async def test_tokenizing_routes_declare_all_that_but_a_failed_inference(path: str) -> None:
    responses = (await document())["paths"][path]["post"]["responses"]
    kinds = {*EMBEDDING_ERRORS} - {errors.InferenceFailed}
    assert set(responses) == {"200", *(str(kind.status) for kind in kinds)}
    assert {schema_name(r) for s, r in responses.items() if s != "200"} == {"NativeError"}


async def test_openai_route_declares_its_own_statuses_and_envelope() -> None:
    responses = (await document())["paths"]["/v1/embeddings"]["post"]["responses"]
    expected = {"200", *(str(kind.openai_status) for kind in EMBEDDING_ERRORS)}
    assert set(responses) == expected
    assert {schema_name(r) for s, r in responses.items() if s != "200"} == {"OpenAIError"}


def test_routes_that_embed_declare_every_error_but_those_before_a_route_is_found() -> None:
    kinds = set(errors.ServiceError.__subclasses__())
    before = {errors.HeadTooLarge, errors.NotFound, errors.MethodNotAllowed}
    assert kinds - set(EMBEDDING_ERRORS) == before


async def test_headers_are_declared() -> None:
    for path in (*NATIVE, "/v1/embeddings"):
        responses = (await document())["paths"][path]["post"]["responses"]
        own = {"x-embedding-shape"} if path == "/embed" else set()
        own |= {"x-embedding-scale"} if path != "/similarity" else set()
        assert set(responses["200"]["headers"]) == EMBEDDING_HEADERS | own | {"X-Request-Id"}
        assert "Retry-After" in responses["429"]["headers"]
        assert "Retry-After" in responses["503"]["headers"]
        assert all("X-Request-Id" in response["headers"] for response in responses.values())


async def test_declared_headers_are_those_sent() -> None:
    response = await client_of(FakeEngine()).post("/embed", json={"inputs": "a"})
    assert set(response.headers) >= EMBEDDING_HEADERS | {"x-request-id"}


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("/embed", "EmbedBody"),
        ("/similarity", "SimilarityBody"),
        ("/v1/embeddings", "OpenAIEmbeddingsBody"),
        ("/tokenize", "TokenizeBody"),
        ("/decode", "DecodeBody"),
        ("/explain", "ExplainBody"),
    ],
)
async def test_bodies_are_declared(path: str, schema: str) -> None:
    whole = await document()
    body = whole["paths"][path]["post"]["requestBody"]
    assert schema_name(body) == schema
    assert "inputs" in whole["components"]["schemas"]["EmbedBody"]["required"]


async def test_embed_declares_its_raw_form() -> None:
    responses = (await document())["paths"]["/embed"]["post"]["responses"]
    assert set(responses["200"]["content"]) == {"application/json", "application/octet-stream"}
