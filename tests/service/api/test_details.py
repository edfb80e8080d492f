"""What answers tell of texts that were cut, of each text, and of the model of the vectors."""

import dataclasses
from typing import Any

import pytest

from s2sent.model.artifact.reader import Artifact
from tests.support.fake_engine import MAX_TOKENS, FakeEngine, client_of

LONG = "word " * MAX_TOKENS

ROUTES = [
    ("/embed", {"inputs": ["short", LONG]}),
    ("/v1/embeddings", {"input": ["short", LONG]}),
    ("/similarity", {"inputs": {"pairs": [["short", LONG]]}}),
]


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_every_embedding_answer_counts_the_texts_that_were_cut(
    path: str, body: dict[str, Any]
) -> None:
    response = await client_of(FakeEngine()).post(path, json=body)
    assert response.headers["x-truncated"] == "1"


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_the_fingerprint_of_an_answer_is_that_of_the_models_list(
    path: str, body: dict[str, Any]
) -> None:
    client = client_of(FakeEngine())
    model = (await client.get("/v1/models")).json()["data"][0]
    assert (await client.post(path, json=body)).headers["x-model-fingerprint"] == model[
        "fingerprint"
    ]
    options = {"parameters": {"depth": 2}} if path == "/similarity" else {"depth": 2}
    shallow = (await client.post(path, json=body | options)).headers["x-model-fingerprint"]
    assert shallow == model["fingerprints_by_depth"]["2"] != model["fingerprint"]
    assert len({model["fingerprint"], *model["fingerprints_by_depth"].values()}) == 3


async def test_another_precision_has_another_fingerprint_and_other_scores_have_not() -> None:
    engine = FakeEngine()
    manifest = engine.artifact.manifest
    seen = []
    for changed in (manifest, dataclasses.replace(manifest, precision="fp32"),
                    dataclasses.replace(manifest, scores={"STS12": 1.0})):  # fmt: skip
        engine.artifact = Artifact(engine.artifact.path, changed)
        response = await client_of(engine).post("/embed", json={"inputs": "a"})
        seen.append(response.headers["x-model-fingerprint"])
    assert seen[0] == seen[2] != seen[1]


async def test_details_tell_the_tokens_of_each_text_and_whether_it_was_cut() -> None:
    client = client_of(FakeEngine())
    inputs = ["two words", LONG]
    plain = await client.post("/embed", json={"inputs": inputs})
    response = await client.post("/embed", json={"inputs": inputs, "details": True})
    openai = await client.post("/v1/embeddings", json={"input": inputs, "details": True})
    answer = response.json()
    assert answer["embeddings"] == plain.json()
    assert answer["details"] == {
        "model_fingerprint": response.headers["x-model-fingerprint"],
        "texts": [
            {"tokens": 4, "unknown": 1, "truncated": False},
            {"tokens": MAX_TOKENS + 2, "unknown": 1, "truncated": True},
        ],
    }
    assert openai.json()["details"] == answer["details"]
    assert sum(text["tokens"] for text in answer["details"]["texts"]) == int(
        response.headers["x-compute-tokens"]
    )


@pytest.mark.parametrize("details", [False, None])
async def test_without_details_answers_have_their_usual_shape(details: bool | None) -> None:
    client = client_of(FakeEngine())
    native = await client.post("/embed", json={"inputs": "a", "details": details})
    openai = await client.post("/v1/embeddings", json={"input": "a", "details": details})
    assert isinstance(native.json(), list)
    assert set(openai.json()) == {"object", "data", "model", "usage"}


async def test_details_have_no_room_beside_raw_numbers() -> None:
    response = await client_of(FakeEngine()).post(
        "/embed",
        json={"inputs": "a", "details": True},
        headers={"Accept": "application/octet-stream"},
    )
    assert response.status_code == 422
    assert "Ask for application/json, or leave details out." in response.json()["error"]
