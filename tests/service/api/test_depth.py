"""Depth and dimensions: what a request asks for, what it gets by default, what can be compared."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.service.engine.inference.model import EngineStartFailed, LoadedModel
from s2sent.service.settings import Settings
from tests.support.fake_engine import DIM, FakeEngine, client_of, vector_of
from tests.support.small_artifact import a_manifest

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/embed", {"inputs": "a"}),
    ("/v1/embeddings", {"input": "a"}),
    ("/similarity", {"inputs": {"pairs": [["a", "b"]]}}),
]
FORMS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"source_sentence": "a", "sentences": ["b", "a"]}, ["a"], ["b", "a"]),
    ({"pairs": [["a", "b"], ["c", "b"]]}, ["a", "c"], ["b"]),
    ({"queries": ["a", "b"], "documents": ["b", "c", "a"]}, ["a", "b"], ["b", "c", "a"]),
]


def elastic_engine(*comparable: int) -> FakeEngine:
    """An engine of six blocks that can stop at 2 and 4."""
    engine = FakeEngine()
    manifest = dataclasses.replace(
        engine.artifact.manifest, backbone={"num_blocks": 6}, comparable_depths=comparable
    )
    engine.artifact = Artifact(engine.artifact.path, manifest)
    return engine


OF_BOTH_SIDES = ("prompt_name", "documents_prompt_name")


def asking(path: str, body: dict[str, Any], **options: int) -> dict[str, Any]:
    return body | ({"parameters": options} if path == "/similarity" else options)


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_request_without_depth_has_the_default_and_the_last_block_is_full_depth(
    path: str, body: dict[str, Any]
) -> None:
    engine = elastic_engine()
    client = client_of(engine, default_depth=2)
    asked = [asking(path, body), asking(path, body, depth=4), asking(path, body, depth=6)]
    fingerprints = [
        (await client.post(path, json=each)).headers["x-model-fingerprint"] for each in asked
    ]
    assert [call.depth for call in engine.calls] == [2, 4, None]
    model = (await client.get("/v1/models")).json()["data"][0]
    assert [model["fingerprints_by_depth"][depth] for depth in "246"] == fingerprints
    assert model["fingerprint"] == fingerprints[0]
    assert len(set(fingerprints)) == 3


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
async def test_a_request_without_dimensions_has_the_default(path: str) -> None:
    client = client_of(FakeEngine(), default_dimensions=3)
    field = "inputs" if path == "/embed" else "input"
    for asked, expected in ((None, 3), (2, 2), (DIM, DIM)):
        answer = (await client.post(path, json={field: "a", "dimensions": asked})).json()
        (row,) = answer if path == "/embed" else [answer["data"][0]["embedding"]]
        assert len(row) == expected


async def test_similarity_compares_full_embeddings_whatever_the_default() -> None:
    body = {"inputs": {"pairs": [["a", "b"]]}}
    rows = [vector_of(text) / np.linalg.norm(vector_of(text)) for text in "ab"]
    response = await client_of(FakeEngine(), default_dimensions=3).post("/similarity", json=body)
    assert response.json() == [pytest.approx(rows[0] @ rows[1], abs=1e-6)]


async def test_info_tells_depths_and_defaults() -> None:
    info = (await client_of(elastic_engine(4, 6), default_depth=4).get("/info")).json()
    assert (info["depths"], info["full_depth"]) == ([2, 4], 6)
    assert info["comparable_depths"] == [4, 6]
    assert (info["default_depth"], info["default_dimensions"]) == (4, None)


@pytest.mark.parametrize(("inputs", "sources", "others"), FORMS)
async def test_sources_and_documents_are_embedded_at_their_own_depths(
    inputs: dict[str, Any], sources: list[str], others: list[str]
) -> None:
    engine = elastic_engine(2, 6)
    client = client_of(engine)
    plain = await client.post("/similarity", json={"inputs": inputs})
    engine.calls.clear()
    options = {"depth": 2, "documents_depth": 6}
    response = await client.post("/similarity", json={"inputs": inputs, "parameters": options})
    assert [(call.texts, call.depth) for call in engine.calls] == [(sources, 2), (others, None)]
    assert response.json() == plain.json()  # the fake's vectors are the same at every depth
    assert response.headers["x-model-fingerprint"] == plain.headers["x-model-fingerprint"]
    assert response.headers["x-compute-tokens"] == str(3 * len([*sources, *others]))
    sent = sum(str(inputs).count(f"'{text}'") for text in "abc")
    assert response.headers["x-compute-characters"] == str(sent)


@pytest.mark.parametrize(("inputs", "sources", "others"), FORMS)
async def test_sources_and_documents_may_have_different_prompts(
    inputs: dict[str, Any], sources: list[str], others: list[str]
) -> None:
    for options, prompts in (
        ({"prompt_name": "query", "documents_prompt_name": ""}, ["query: ", ""]),
        ({"documents_prompt_name": "query"}, ["", "query: "]),
    ):
        engine = FakeEngine()
        body = {"inputs": inputs, "parameters": options}
        response = await client_of(engine).post("/similarity", json=body)
        asked = [(call.texts, call.prompt) for call in engine.calls]
        assert asked == [(sources, prompts[0]), (others, prompts[1])]
        assert len(response.json()) > 0
    engine = FakeEngine()
    for options in ({"prompt_name": "query"}, dict.fromkeys(OF_BOTH_SIDES, "query")):
        body = {"inputs": inputs, "parameters": options}
        await client_of(engine).post("/similarity", json=body)
    assert [call.prompt for call in engine.calls] == ["query: ", "query: "]


async def test_a_prompt_that_the_model_lacks_is_refused_by_the_name_of_its_field() -> None:
    for name, otherwise in zip(OF_BOTH_SIDES, ("none", "that of prompt_name"), strict=True):
        body = {"inputs": {"pairs": [["a", "b"]]}, "parameters": {name: "passage"}}
        response = await client_of(FakeEngine()).post("/similarity", json=body)
        assert response.json()["error"] == (
            f"{name} is 'passage'; this model has query."
            f' Send "" for no prompt, or leave it out for {otherwise}.'
        )


async def test_documents_of_the_sources_depth_need_one_run() -> None:
    engine = elastic_engine()
    inputs = {"source_sentence": "a", "sentences": ["a", "b"]}
    for options in ({"depth": 4, "documents_depth": 4}, {"documents_depth": 6}):
        body = {"inputs": inputs, "parameters": options}
        assert (await client_of(engine).post("/similarity", json=body)).status_code == 200
    assert [(call.texts, call.depth) for call in engine.calls] == [
        (["a", "b"], 4),
        (["a", "b"], None),
    ]


@pytest.mark.parametrize(
    ("comparable", "options", "message"),
    [
        (
            (),
            {"depth": 2, "documents_depth": 6},
            "documents_depth is 6 and depth is 2; of this model's depths these can be compared"
            " with each other: none. Leave documents_depth out.",
        ),
        (
            (4, 6),
            {"documents_depth": 2},
            "documents_depth is 2 and depth is full; of this model's depths these can be compared"
            " with each other: 4, 6. Leave documents_depth out.",
        ),
        (
            (2, 4, 6),
            {"depth": 2, "documents_depth": 3},
            "documents_depth is 3; this model can stop at 2, 4, 6. Leave it out for the depth of"
            " the source.",
        ),
    ],
)
async def test_depths_that_cannot_be_compared_are_refused_with_those_that_can(
    comparable: tuple[int, ...], options: dict[str, int], message: str
) -> None:
    engine = elastic_engine(*comparable)
    body = {"inputs": {"pairs": [["a", "b"]]}, "parameters": options}
    response = await client_of(engine).post("/similarity", json=body)
    assert response.status_code == 422
    assert response.json() == {"error": message, "error_type": "Validation"}
    assert engine.calls == []


async def test_comparable_depths_have_one_fingerprint_and_others_their_own() -> None:
    model = (await client_of(elastic_engine(4, 6)).get("/v1/models")).json()["data"][0]
    by_depth = model["fingerprints_by_depth"]
    assert by_depth["4"] == by_depth["6"] == model["fingerprint"] != by_depth["2"]


@pytest.mark.parametrize(("default", "otherwise"), [(None, "full depth"), (4, "the default, 4")])
async def test_a_depth_that_is_refused_names_every_depth_and_the_default(
    default: int | None, otherwise: str
) -> None:
    client = client_of(elastic_engine(), default_depth=default)
    response = await client.post("/embed", json={"inputs": "a", "depth": 5})
    message = f"depth is 5; this model can stop at 2, 4, 6. Leave it out for {otherwise}."
    assert response.json()["error"] == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"default_depth": 3}, r"default_depth is 3; m can stop at 2, 6\. Set S2SENT_DEFAULT_DEP"),
        ({"default_dimensions": 3}, r"default_dimensions is 3; m has 2\. Set S2SENT_.* at most 2,"),
    ],
)
def test_a_default_that_the_model_lacks_ends_the_start(
    settings: dict[str, int], message: str
) -> None:
    manifest = dataclasses.replace(a_manifest(), backbone={"num_blocks": 6}, depths=(2,))
    with pytest.raises(EngineStartFailed, match=message):
        LoadedModel.open(Settings(**settings), Artifact(Path("m"), manifest))  # type: ignore[arg-type]  # pydantic checks them
