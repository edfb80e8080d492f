"""input_type chooses the model's prompt for queries or documents, and a ranking uses both."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from s2sent.service.api.prompts import ROLES
from s2sent.service.app import create_app
from s2sent.service.settings import Settings
from tests.support.fake_engine import FakeEngine, InProcess

PROMPTS = {"query": "Q: ", "passage": "P: ", "other": "O: "}
EMBEDDING = (("/embed", "inputs"), ("/v1/embeddings", "input"), ("/explain", "inputs"))
RANKING = {"queries": ["a"], "documents": ["b", "c"]}


def engine_with(prompts: dict[str, str], default: str | None = None) -> FakeEngine:
    engine = FakeEngine()
    manifest = replace(
        engine.artifact.manifest,
        prompts=prompts,
        default_prompt_name=default,
        backbone={"num_blocks": 4},
        selector={"num_blocks": 2},
    )
    engine.artifact = replace(engine.artifact, manifest=manifest)
    return engine


async def post(engine: FakeEngine, path: str, body: dict[str, Any]) -> httpx.Response:
    app = create_app(Settings(), engine=engine)
    async with httpx.AsyncClient(transport=InProcess(app), base_url="http://test") as client:
        return await client.post(path, json=body)


@pytest.mark.parametrize(("path", "field"), EMBEDDING)
@pytest.mark.parametrize("input_type", ROLES)
async def test_an_input_type_chooses_the_prompt_of_its_role(
    path: str, field: str, input_type: str
) -> None:
    engine = engine_with(PROMPTS)
    response = await post(engine, path, {field: "a", "input_type": input_type})
    assert response.status_code == 200
    expected = "Q: " if "query" in input_type else "P: "
    assert [call.prompt for call in engine.calls] == [expected]


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({}, None, ""),
        ({"query": "Q: "}, None, ""),
        ({"query": "Q: "}, "query", "Q: "),
        ({"query": "Q: ", "document": "", "passage": "P: "}, "query", ""),
        ({"search_document": "S: "}, None, "S: "),
        ({"corpus": "C: ", "search_document": "S: "}, None, "C: "),
    ],
)
async def test_a_role_is_read_as_encode_document_reads_it(
    prompts: dict[str, str], default: str | None, expected: str
) -> None:
    """The first of its names, also where its text is empty; else the default prompt."""
    engine = engine_with(prompts, default)
    await post(engine, "/embed", {"inputs": "a", "input_type": "document"})
    assert [call.prompt for call in engine.calls] == [expected]


@pytest.mark.parametrize(("path", "field"), EMBEDDING)
async def test_an_unknown_input_type_is_refused(path: str, field: str) -> None:
    response = await post(engine_with(PROMPTS), path, {field: "a", "input_type": "clustering"})
    assert response.status_code == (400 if path.startswith("/v1") else 422)
    assert "input_type must be" in response.text
    assert "search_document" in response.text


async def test_a_prompt_name_beside_an_input_type_is_refused() -> None:
    body = {"inputs": "a", "input_type": "query", "prompt_name": "other"}
    response = await post(engine_with(PROMPTS), "/embed", body)
    assert (response.status_code, response.json()["error"]) == (
        422,
        "prompt_name is 'other' and input_type 'query', and both choose the prompt."
        " Send one of them.",
    )


async def test_null_is_no_input_type() -> None:
    engine = engine_with(PROMPTS)
    await post(engine, "/embed", {"inputs": "a", "input_type": None, "prompt_name": "other"})
    assert [call.prompt for call in engine.calls] == ["O: "]


@pytest.mark.parametrize(
    ("parameters", "prompts"),
    [
        ({}, ["Q: ", "P: "]),
        ({"prompt_name": "other"}, ["O: "]),
        ({"input_type": "passage"}, ["P: "]),
        ({"documents_prompt_name": "other"}, ["", "O: "]),
        ({"prompt_name": ""}, [""]),
    ],
)
async def test_a_ranking_that_names_no_prompt_uses_both_roles(
    parameters: dict[str, str], prompts: list[str]
) -> None:
    engine = engine_with(PROMPTS)
    response = await post(engine, "/similarity", {"inputs": RANKING, "parameters": parameters})
    assert response.status_code == 200
    assert [call.prompt for call in engine.calls] == prompts


@pytest.mark.parametrize(
    "inputs", [{"pairs": [["a", "b"]]}, {"source_sentence": "a", "sentences": ["b"]}]
)
async def test_texts_that_are_only_compared_have_no_role(inputs: dict[str, Any]) -> None:
    engine = engine_with(PROMPTS)
    await post(engine, "/similarity", {"inputs": inputs})
    assert [call.prompt for call in engine.calls] == [""]


async def test_info_names_the_prompt_of_each_role() -> None:
    app = create_app(Settings(), engine=engine_with({"query": "Q: "}))
    async with httpx.AsyncClient(transport=InProcess(app), base_url="http://test") as client:
        assert (await client.get("/info")).json()["roles"] == {"query": "query", "document": None}
