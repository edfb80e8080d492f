"""on_error null: a text that cannot be embedded is null, and the others are answered."""

from typing import Any

import numpy as np
import pytest

from s2sent.service.errors import InferenceFailed, InvalidInput
from tests.support.fake_engine import DIM, FakeEngine, client_of

TOO_LONG = InvalidInput("Input 1 is too long.")


async def test_a_text_with_an_error_is_null_among_the_others() -> None:
    client = client_of(FakeEngine(errors={1: TOO_LONG}))
    whole = (await client.post("/embed", json={"inputs": ["a", "b", "c"]})).json()
    body = {"inputs": ["a", "b", "c"], "on_error": "null"}
    response = await client.post("/embed", json=body)
    assert response.status_code == 200
    assert response.json() == [whole[0], None, whole[2]]


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
async def test_the_openai_route_has_null_in_its_place(encoding_format: str) -> None:
    client = client_of(FakeEngine(errors={0: TOO_LONG}))
    body = {"input": ["a", "b"], "on_error": "null", "encoding_format": encoding_format}
    data = (await client.post("/v1/embeddings", json=body)).json()["data"]
    assert [item["index"] for item in data] == [0, 1]
    assert data[0]["embedding"] is None
    assert data[1]["embedding"]


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
async def test_details_say_why(path: str) -> None:
    client = client_of(FakeEngine(errors={1: TOO_LONG}))
    body = {"inputs": ["a", "b"], "input": ["a", "b"], "on_error": "null", "details": True}
    texts = (await client.post(path, json=body)).json()["details"]["texts"]
    assert "error" not in texts[0]
    assert (texts[1]["error"], texts[1]["error_type"]) == (TOO_LONG.message, "Validation")


@pytest.mark.parametrize(
    ("path", "field", "inputs"),
    [
        ("/embed", "inputs", ["a", "", []]),
        ("/embed", "inputs", ""),
        ("/v1/embeddings", "input", ["a", ""]),
        ("/v1/embeddings", "input", ""),
    ],
)
async def test_empty_texts_reach_the_engine_only_where_they_may_be_null(
    path: str, field: str, inputs: Any
) -> None:
    engine = FakeEngine()
    client = client_of(engine)
    refused = await client.post(path, json={field: inputs})
    assert refused.status_code == 400
    assert engine.calls == []
    assert (await client.post(path, json={field: inputs, "on_error": "null"})).status_code == 200
    assert engine.calls[0].texts == ([inputs] if isinstance(inputs, str) else inputs)
    assert engine.calls[0].skip_failed


@pytest.mark.parametrize(
    ("inputs", "texts"),
    [
        (["a", [-1], [5, 2**64]], ["a", [-1], [5, 2**64]]),
        ([-1, 5], [[-1, 5]]),
        ([2**64], [[2**64]]),
        ([[-(2**64)]], [[-(2**64)]]),
    ],
)
async def test_any_integer_reaches_the_tokenizer_where_it_may_be_null(
    inputs: Any, texts: Any
) -> None:
    engine = FakeEngine()
    body = {"inputs": inputs, "on_error": "null"}
    assert (await client_of(engine).post("/embed", json=body)).status_code == 200
    assert engine.calls[0].texts == texts


@pytest.mark.parametrize("inputs", [[], [None], [1.5], {"a": 1}, 7])
async def test_what_is_no_text_fails_the_request_all_the_same(inputs: Any) -> None:
    body = {"inputs": inputs, "on_error": "null"}
    assert (await client_of(FakeEngine()).post("/embed", json=body)).status_code in (400, 422)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
async def test_a_vector_without_direction_is_null_too(value: float) -> None:
    rows = np.ones((3, DIM), np.float32)
    rows[1] = value
    engine = FakeEngine(vectors=rows, errors={0: InferenceFailed("It failed.")})
    body = {"inputs": ["a", "b", "c"], "on_error": "null", "details": True}
    answer = (await client_of(engine).post("/embed", json=body)).json()
    assert [row is None for row in answer["embeddings"]] == [True, True, False]
    assert answer["details"]["texts"][1]["error_type"] == "Backend"
    assert "input 1" in answer["details"]["texts"][1]["error"]


async def test_all_texts_may_be_null() -> None:
    engine = FakeEngine(errors={0: TOO_LONG, 1: TOO_LONG})
    body = {"inputs": ["a", "b"], "on_error": "null"}
    response = await client_of(engine).post("/embed", json=body)
    assert (response.status_code, response.json()) == (200, [None, None])


@pytest.mark.parametrize("options", [{}, {"on_error": "fail"}, {"on_error": None}])
async def test_the_default_is_all_or_nothing(options: dict[str, Any]) -> None:
    engine = FakeEngine()
    assert (await client_of(engine).post("/embed", json={"inputs": "a", **options})).is_success
    assert not engine.calls[0].skip_failed


async def test_another_value_is_refused() -> None:
    response = await client_of(FakeEngine()).post("/embed", json={"inputs": "a", "on_error": "x"})
    assert response.status_code == 422
    assert "on_error must be 'fail' or 'null'" in response.json()["error"]


async def test_raw_numbers_have_no_null() -> None:
    response = await client_of(FakeEngine()).post(
        "/embed",
        json={"inputs": "a", "on_error": "null"},
        headers={"Accept": "application/octet-stream"},
    )
    assert response.status_code == 422
    assert "Ask for application/json, or leave on_error out." in response.json()["error"]
