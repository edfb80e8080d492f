"""POST / answers by the form of its inputs, as /embed and /similarity answer the same body."""

from typing import Any

import pytest

from tests.support.fake_engine import FakeEngine, client_of

SOURCE = {"source_sentence": "a", "sentences": ["b", "c"]}
EMBED: list[Any] = [
    *({"inputs": "a"}, {"inputs": ["a", "b"]}, {"inputs": [[1, 2], "a"]}),
    {"inputs": "a", "normalize": False, "dimensions": 3, "encoding": "base64", "details": True},
    *({"inputs": []}, {"inputs": [1.5]}, {"inputs": None}, {"inputs": "a", "dimensions": 10**30}),
    *({}, [], None, 3, "a", {"inputs": "a", "prompt_name": "nope"}),
]
SIMILARITY: list[Any] = [
    {"inputs": SOURCE},
    {"inputs": SOURCE, "parameters": {"depth": 2}},
    {"inputs": {"pairs": [["a", "b"]]}},
    {"inputs": {"queries": ["a"], "documents": ["b", "c"], "top_k": 1}},
    *({"inputs": {}}, {"inputs": {"pairs": []}}, {"inputs": {"pairs": [["a"]]}}),
    {"inputs": SOURCE, "parameters": {"depth": 3}},
]


@pytest.mark.parametrize(
    ("path", "body"),
    [*(("/embed", body) for body in EMBED), *(("/similarity", body) for body in SIMILARITY)],
)
async def test_the_root_answers_as_the_route_of_the_form_does(path: str, body: Any) -> None:
    client = client_of(FakeEngine())
    root, route = await client.post("/", json=body), await client.post(path, json=body)
    assert (root.status_code, root.json()) == (route.status_code, route.json())


@pytest.mark.parametrize(("path", "body"), [("/embed", EMBED[0]), ("/similarity", SIMILARITY[0])])
async def test_the_root_counts_as_the_route_of_the_form(path: str, body: Any) -> None:
    client = client_of(FakeEngine())
    await client.post("/", json=body)
    metrics = (await client.get("/metrics")).text
    assert f's2sent_requests_total{{route="{path}",status="200"}} 1.0' in metrics
