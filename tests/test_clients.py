"""The bodies that real clients send, byte for byte what matters of them, are all understood."""

from typing import Any

import pytest

from tests.fake_engine import FakeEngine, client_of

EMBED: dict[str, dict[str, Any]] = {
    "huggingface_hub feature_extraction": {"inputs": "text"},
    "huggingface_hub with options": {"inputs": "text", "normalize": True, "truncate": True},
    "huggingface_hub left": {"inputs": "text", "truncation_direction": "Left"},
    "haystack": {"inputs": "text", "truncate": True, "normalize": False},
    "haystack documents": {"inputs": ["a", "b"], "truncate": True, "normalize": False},
    "llama-index": {"inputs": ["a", "b"], "truncate": True},
    "chroma": {"inputs": ["a", "b"]},
    "nulls": {
        "inputs": "text",
        "truncate": None,
        "truncation_direction": None,
        "prompt_name": None,
        "normalize": None,
        "dimensions": None,
        "encoding_format": None,
    },
}

OPENAI: dict[str, dict[str, Any]] = {
    "openai": {"model": "m", "input": ["a"], "encoding_format": "base64"},
    "openai with options": {
        "model": "m",
        "input": "a",
        "user": "u",
        "dimensions": 4,
        "encoding_format": "float",
    },
    "langchain-openai": {"model": "m", "input": ["a"] * 1000, "encoding_format": "base64"},
    "litellm": {"model": "m", "input": ["a"], "encoding_format": None},
    "mteb": {"model": "m", "input": ["a"], "truncate_prompt_tokens": 256},
    "voyage": {"model": "m", "input": ["a"], "input_type": "query", "truncation": True},
    "nulls": {
        "input": "a",
        "model": None,
        "user": None,
        "dimensions": None,
        "encoding_format": None,
    },
}

SIMILARITY: dict[str, dict[str, Any]] = {
    "huggingface_hub sentence_similarity": {
        "inputs": {"source_sentence": "a", "sentences": ["b", "c"]},
        "parameters": {},
    },
    "without parameters": {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}},
    "nulls": {
        "inputs": {"source_sentence": "a", "sentences": ["b", "c"], "pairs": None},
        "parameters": None,
    },
}


@pytest.mark.parametrize("path", ["/embed", "/"])
@pytest.mark.parametrize("client", EMBED)
async def test_embed_understands(client: str, path: str) -> None:
    body = EMBED[client]
    response = await client_of(FakeEngine()).post(path, json=body)
    assert response.status_code == 200
    assert len(response.json()) == (1 if isinstance(body["inputs"], str) else len(body["inputs"]))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
@pytest.mark.parametrize("client", OPENAI)
async def test_openai_route_understands(client: str, path: str) -> None:
    body = OPENAI[client]
    response = await client_of(FakeEngine()).post(path, json=body)
    assert response.status_code == 200
    embedding = response.json()["data"][0]["embedding"]
    assert isinstance(embedding, str) is (body.get("encoding_format") == "base64")


@pytest.mark.parametrize("client", SIMILARITY)
async def test_similarity_understands(client: str) -> None:
    response = await client_of(FakeEngine()).post("/similarity", json=SIMILARITY[client])
    assert response.status_code == 200
    assert len(response.json()) == 2
    assert all(isinstance(score, float) for score in response.json())
