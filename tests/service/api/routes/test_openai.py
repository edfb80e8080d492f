"""/v1/embeddings and /v1/models, as OpenAI's clients use them."""

import base64

import numpy as np
import pytest

from tests.support.fake_engine import DIM, FakeEngine, client_of, vector_of


async def test_a_request_may_say_how_a_long_text_is_cut() -> None:
    engine = FakeEngine()
    body = {"input": "a", "truncate": False, "truncation_direction": "left"}
    response = await client_of(engine, auto_truncate=True).post("/v1/embeddings", json=body)
    assert response.status_code == 200
    (call,) = engine.calls
    assert (call.truncate, call.truncation_direction) == (False, "left")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
@pytest.mark.parametrize("texts", ["a", ["a", "two words"]])
async def test_answer_has_openais_shape_and_exact_usage(path: str, texts: str | list[str]) -> None:
    response = await client_of(FakeEngine()).post(path, json={"input": texts, "model": "any"})
    body = response.json()
    count = 1 if isinstance(texts, str) else len(texts)
    tokens = int(response.headers["x-compute-tokens"])
    assert (body["object"], body["model"]) == ("list", "tiny-s2sent")
    assert [item["index"] for item in body["data"]] == list(range(count))
    assert {item["object"] for item in body["data"]} == {"embedding"}
    assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert tokens == (3 if count == 1 else 7)


async def test_base64_and_float_are_the_same_numbers() -> None:
    client = client_of(FakeEngine())
    body = {"input": ["a", "b"], "dimensions": 5}
    floats = (await client.post("/v1/embeddings", json=body)).json()["data"]
    encoded = (
        await client.post("/v1/embeddings", json=body | {"encoding_format": "base64"})
    ).json()
    for number, text in zip(floats, encoded["data"], strict=True):
        decoded = np.frombuffer(base64.b64decode(text["embedding"]), "<f4")
        assert np.array_equal(decoded, np.array(number["embedding"], np.float32))
        assert np.linalg.norm(decoded) == pytest.approx(1, abs=1e-6)


async def test_embeddings_are_those_of_the_native_route() -> None:
    client = client_of(FakeEngine())
    openai = await client.post("/v1/embeddings", json={"input": "a"})
    native = await client.post("/embed", json={"inputs": "a"})
    assert openai.json()["data"][0]["embedding"] == native.json()[0]
    assert len(native.json()[0]) == DIM == len(vector_of("a"))


@pytest.mark.parametrize("ids", [[1, 2, 3], [[1, 2], [3]], ["a", [1]], [7] * 5000])
async def test_token_ids_are_refused_with_the_cure(ids: object) -> None:
    response = await client_of(FakeEngine()).post("/v1/embeddings", json={"input": ids})
    error = response.json()["error"]
    assert response.status_code == 400
    assert "check_embedding_ctx_length=False" in error["message"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "input")


@pytest.mark.parametrize(
    ("given", "param", "type_"),
    [
        ([["a", "b"]], "input[0]", "a list"),
        (["a", 7], "input[1]", "7"),
        ([7, "a"], "input[0]", "7"),
        (["a", ["b"]], "input[1]", "a list"),
        ([[]], "input[0]", "a list"),
        (["a", None], "input[1]", "null"),
        (["a", True], "input[1]", "true"),
        (["a", 1.5], "input[1]", "1.5"),
        (["a", {}], "input[1]", "an object"),
    ],
)
async def test_what_is_neither_text_nor_ids_is_named_with_its_type(
    given: object, param: str, type_: str
) -> None:
    response = await client_of(FakeEngine()).post("/v1/embeddings", json={"input": given})
    error = response.json()["error"]
    assert error["message"] == f"{param} must be a string, got {type_}."
    assert error["param"] == param


async def test_the_served_name_is_the_models_name() -> None:
    client = client_of(FakeEngine(), served_name="mine")
    models = (await client.get("/v1/models")).json()
    answer = (await client.post("/v1/embeddings", json={"input": "a", "model": "other"})).json()
    assert models["object"] == "list"
    assert models["data"][0]["id"] == answer["model"] == "mine"
    assert models["data"][0]["created"] > 0
