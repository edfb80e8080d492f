"""Every error of every route has its dialect's envelope, a sentence, and a request id."""

import gc
import json
from typing import Any

import httpx
import pytest

from s2sent.service import errors
from s2sent.service.app import create_app
from s2sent.service.errors import ServiceError
from s2sent.service.settings import Settings
from tests.support.fake_engine import FakeEngine, client_of

JSON = {"Content-Type": "application/json"}
TOO_DEEP = b'{"inputs": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"

# What is wrong with a request -> its content, its headers, the native status and type. Native and
# OpenAI bodies differ in one field name, written FIELD.
BAD_REQUESTS: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "no content type": (b"{}", {}, 415, "UnsupportedMediaType"),
    "a form": (b"a=b", {"Content-Type": "text/plain"}, 415, "UnsupportedMediaType"),
    "compressed": (b"{}", JSON | {"Content-Encoding": "gzip"}, 415, "UnsupportedMediaType"),
    "no body": (b"", JSON, 400, "Malformed"),
    "not JSON": (b'{"FIELD": ', JSON, 400, "Malformed"),
    "NaN": (b'{"FIELD": "a", "dimensions": NaN}', JSON, 400, "Malformed"),
    "broken UTF-8": (b'{"FIELD": "\xff"}', JSON, 400, "Malformed"),
    "a lone surrogate": (rb'{"FIELD": "\ud800"}', JSON, 400, "Malformed"),
    "too deep": (TOO_DEEP, JSON, 400, "Malformed"),
    "not an object": (b"[1]", JSON, 422, "Validation"),
    "nothing to embed": (b"{}", JSON, 422, "Validation"),
    "null to embed": (b'{"FIELD": null}', JSON, 422, "Validation"),
    "an object": (b'{"FIELD": {"a": 1}}', JSON, 422, "Validation"),
    "a number in the list": (b'{"FIELD": ["a", 1.5]}', JSON, 422, "Validation"),
    "an empty text": (b'{"FIELD": ""}', JSON, 400, "Empty"),
    "an empty text in the list": (b'{"FIELD": ["a", ""]}', JSON, 400, "Empty"),
    "an empty list": (b'{"FIELD": []}', JSON, 400, "Empty"),
    "dimensions 0": (b'{"FIELD": "a", "dimensions": 0}', JSON, 422, "Validation"),
    "too many dimensions": (b'{"FIELD": "a", "dimensions": 9}', JSON, 422, "Validation"),
    "depth 0": (b'{"FIELD": "a", "depth": 0}', JSON, 422, "Validation"),
    "a depth that is not there": (b'{"FIELD": "a", "depth": 3}', JSON, 422, "Validation"),
    "dimensions as text": (b'{"FIELD": "a", "dimensions": "3"}', JSON, 422, "Validation"),
    "dimensions true": (b'{"FIELD": "a", "dimensions": true}', JSON, 422, "Validation"),
    "a huge integer": (
        b'{"FIELD": "a", "dimensions": 1' + b"0" * 30 + b"}",
        JSON,
        422,
        "Validation",
    ),
    "too large": (b'{"FIELD": "' + b"a" * 300_000 + b'"}', JSON, 413, "PayloadTooLarge"),
}

NATIVE_ONLY: dict[str, dict[str, Any]] = {
    "normalize as text": {"inputs": "a", "normalize": "true"},
    "truncate as a number": {"inputs": "a", "truncate": 1},
    "an unknown direction": {"inputs": "a", "truncation_direction": "up"},
    "a list as direction": {"inputs": "a", "truncation_direction": []},
    "an unknown prompt": {"inputs": "a", "prompt_name": "nope"},
    "a negative id": {"inputs": [-1]},
    "a boolean id": {"inputs": [[True]]},
}

SIMILARITY: dict[str, tuple[Any, int]] = {
    "no form": ({"inputs": {}}, 422),
    "a list": ({"inputs": ["a", "b"]}, 422),
    "no sentences": ({"inputs": {"source_sentence": "a"}}, 422),
    "sentences empty": ({"inputs": {"source_sentence": "a", "sentences": []}}, 400),
    "an empty sentence": ({"inputs": {"source_sentence": "a", "sentences": [""]}}, 400),
    "an empty source": ({"inputs": {"source_sentence": "", "sentences": ["a"]}}, 400),
    "token ids": ({"inputs": {"source_sentence": "a", "sentences": [[1]]}}, 422),
    "no pairs": ({"inputs": {"pairs": []}}, 400),
    "half a pair": ({"inputs": {"pairs": [["a"]]}}, 422),
    "an empty half": ({"inputs": {"pairs": [["a", ""]]}}, 400),
    "no documents": ({"inputs": {"queries": ["a"], "documents": []}}, 400),
    "top 0": ({"inputs": {"queries": ["a"], "documents": ["b"], "top_k": 0}}, 422),
    "parameters as text": ({"inputs": {"pairs": [["a", "b"]]}, "parameters": "x"}, 422),
}

ENGINE_ERRORS = [
    errors.EmptyInput,
    errors.InvalidInput,
    errors.PayloadTooLarge,
    errors.Overloaded,
    errors.NotReady,
    errors.DeadlineExceeded,
    errors.InferenceFailed,
]


def check_native(response: httpx.Response, status: int, error_type: str) -> None:
    body = response.json()
    assert (response.status_code, body["error_type"]) == (status, error_type), body
    assert set(body) == {"error", "error_type"}
    check_sentence(body["error"])
    assert response.headers["x-request-id"]


def check_openai(response: httpx.Response, status: int, code: str) -> None:
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"].endswith("_error")
    check_sentence(error["message"])
    assert response.headers["x-request-id"]


def check_sentence(message: str) -> None:
    assert message.endswith((".", ")"))
    assert "\n" not in message
    assert len(message) < 200


def as_openai(status: int) -> int:
    return {422: 400, 424: 500}.get(status, status)


@pytest.mark.parametrize("problem", BAD_REQUESTS)
async def test_bad_request_has_the_envelope_of_its_dialect(problem: str) -> None:
    content, headers, status, error_type = BAD_REQUESTS[problem]
    client = client_of(FakeEngine(), max_body_bytes=250_000)
    native, openai = content.replace(b"FIELD", b"inputs"), content.replace(b"FIELD", b"input")
    for path in ("/embed", "/"):
        check_native(await client.post(path, content=native, headers=headers), status, error_type)
    for path in ("/v1/embeddings", "/embeddings"):
        response = await client.post(path, content=openai, headers=headers)
        check_openai(response, as_openai(status), error_type)


@pytest.mark.parametrize("problem", NATIVE_ONLY)
async def test_bad_option_is_a_validation_error(problem: str) -> None:
    response = await client_of(FakeEngine()).post("/embed", json=NATIVE_ONLY[problem])
    check_native(response, 422, "Validation")


@pytest.mark.parametrize("problem", SIMILARITY)
async def test_bad_similarity_request_names_the_field(problem: str) -> None:
    body, status = SIMILARITY[problem]
    response = await client_of(FakeEngine()).post("/similarity", json=body)
    check_native(response, status, "Empty" if status == 400 else "Validation")
    assert response.json()["error"].startswith(("inputs", "parameters"))


@pytest.mark.parametrize("kind", ENGINE_ERRORS, ids=lambda kind: kind.__name__)
async def test_engine_error_keeps_its_status_and_message(kind: type[ServiceError]) -> None:
    client = client_of(FakeEngine(error=kind("This happened. Do that.", retry_after_seconds=7)))
    native = await client.post("/embed", json={"inputs": "a"})
    check_native(native, kind.status, kind.error_type)
    assert native.json()["error"] == "This happened. Do that."
    assert native.headers["retry-after"] == "7"
    openai = await client.post("/v1/embeddings", json={"input": "a"})
    check_openai(openai, kind.openai_status, kind.error_type)
    assert openai.headers["retry-after"] == "7"


async def test_text_of_a_foreign_exception_never_leaves() -> None:
    client = client_of(FakeEngine(error=RuntimeError("secret path /etc/x")))
    native = await client.post("/embed", json={"inputs": "a"})
    openai = await client.post("/v1/embeddings", json={"input": "a"})
    check_native(native, 500, "Internal")
    check_openai(openai, 500, "Internal")
    assert "secret" not in native.text + openai.text


async def test_unknown_routes_and_methods_have_the_envelope_too() -> None:
    client = client_of(FakeEngine())
    check_native(await client.get("/nope"), 404, "NotFound")
    check_openai(await client.get("/v1/nope"), 404, "NotFound")
    native, openai = await client.get("/embed"), await client.get("/v1/embeddings")
    check_native(native, 405, "MethodNotAllowed")
    check_openai(openai, 405, "MethodNotAllowed")
    assert native.headers["allow"] == openai.headers["allow"] == "POST"


async def test_message_names_the_element_and_what_it_is() -> None:
    client = client_of(FakeEngine())
    response = await client.post("/embed", json={"inputs": ["a", "b", "c", 4]})
    sentence = "inputs[3] must be a string or a list of token ids, got 4."
    assert response.json()["error"] == sentence


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": ["a"] * 5}),
        ("/v1/embeddings", {"input": ["a"] * 5}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"] * 4}}),
        ("/similarity", {"inputs": {"pairs": [["a", "a"]] * 3}}),
        ("/similarity", {"inputs": {"queries": ["a"] * 2, "documents": ["a"] * 3}}),
    ],
)
async def test_too_many_texts_are_refused_with_both_numbers(path: str, body: Any) -> None:
    engine = FakeEngine()
    response = await client_of(engine, max_client_batch_size=4).post(path, json=body)
    assert response.status_code == 413
    assert "the limit is 4" in response.text
    assert not engine.calls


async def test_as_many_texts_as_allowed_are_taken() -> None:
    client = client_of(FakeEngine(), max_client_batch_size=4)
    inputs = {"source_sentence": "a", "sentences": ["b"] * 3}
    assert (await client.post("/similarity", json={"inputs": inputs})).status_code == 200
    assert (await client.post("/embed", json={"inputs": ["a"] * 4})).status_code == 200


async def test_many_faults_are_one_sentence() -> None:
    body = {"inputs": {"source_sentence": "a", "sentences": [1] * 500}, "parameters": 3}
    response = await client_of(FakeEngine()).post("/similarity", json=body)
    check_native(response, 422, "Validation")
    expected = "inputs.sentences[0] must be a string, got 1. Wrong as well: parameters."
    assert response.json()["error"] == expected


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "The body is empty."),
        ('{"inputs": "é'.encode() + b'\xff"}', "The body is not UTF-8: byte 14 is 0xff."),
        (b'{"inputs": "\xc3', "The body is not UTF-8: byte 12 is 0xc3."),
        (
            b'{"inputs":\n "a" "b"}',
            "The body is not JSON: unexpected character, expected ',' or '}', at line 2, column 6.",
        ),
        (
            b'\xef\xbb\xbf{"inputs": "a"}',
            "The body is not JSON: UTF-8 byte order mark (BOM) is not supported,"
            " at line 1, column 1.",
        ),
        (
            b"[" * 1025 + b"]" * 1025,
            "The body is not JSON: depth limit exceeded, at line 1, column 1026.",
        ),
        (
            b'{"inputs": 1e400}',
            "The body is not JSON: number is infinity when parsed as double, at line 1, column 12.",
        ),
        (
            rb'{"inputs": "\ud800"}',
            "The body is not JSON: no low surrogate in string, at line 1, column 13.",
        ),
    ],
)
async def test_a_body_that_cannot_be_read_is_told_where(content: bytes, sentence: str) -> None:
    response = await client_of(FakeEngine()).post("/embed", content=content, headers=JSON)
    assert response.json()["error"] == f"{sentence} Send one JSON object in UTF-8."


async def test_a_body_with_a_false_length_is_stopped_while_it_streams() -> None:
    async def endless() -> Any:
        while True:
            yield b" " * 1024

    client = client_of(FakeEngine(), max_body_bytes=4096)
    response = await client.post("/embed", content=endless(), headers=JSON)
    check_native(response, 413, "PayloadTooLarge")


@pytest.mark.parametrize(
    "media_type", ["application/json", "Application/JSON; charset=utf-8", "application/ld+json"]
)
async def test_json_media_types_are_understood(media_type: str) -> None:
    content = json.dumps({"inputs": "a"}).encode()
    headers = {"Content-Type": media_type, "Content-Encoding": "identity"}
    response = await client_of(FakeEngine()).post("/embed", content=content, headers=headers)
    assert response.status_code == 200


@pytest.mark.usefixtures("collector")
async def test_no_request_leaves_reference_cycles() -> None:
    """So the collector, whose pauses grow with what waits, hardly has to run."""
    app = create_app(Settings(max_body_bytes=200_000), engine=FakeEngine())
    statuses: list[int] = []

    async def post(content: bytes, headers: dict[str, str]) -> None:
        async def receive() -> dict[str, Any]:
            body = content.replace(b"FIELD", b"inputs")
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            if "status" in message:
                statuses.append(message["status"])

        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        route = {"type": "http", "method": "POST", "path": "/embed", "query_string": b""}
        await app(route | {"headers": pairs, "state": {}}, receive, send)
        app.state.service.metrics.deferred.run()

    cases = [(content, headers) for content, headers, *_ in BAD_REQUESTS.values()]
    cases.append((b'{"FIELD": "a"}', JSON))
    left = []
    for case in cases:
        await post(*case)  # makes what is made once for all
        gc.collect()
        await post(*case)
        left.append(gc.collect())
    expected = [status for *_, status, _ in BAD_REQUESTS.values()] + [200]
    assert statuses == [status for status in expected for _ in range(2)]
    assert left == [0] * len(cases)
