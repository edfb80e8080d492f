"""LlamaIndex's two clients against the service."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

GUITAR, MUSIC = "A man is playing a guitar.", "Someone plays music."
MANY = [f"Text {number} of many." for number in range(35)]


def clients(url: str) -> list[Any]:
    return [
        TextEmbeddingsInference(model_name="s2sent", base_url=url),
        OpenAILikeEmbedding(model_name="s2sent", api_base=f"{url}/v1", api_key="any"),
    ]


@pytest.mark.parametrize("snippet", ["llamaindex-tei", "llamaindex-openai-like"])
def test_the_pages_snippet_gives_the_vectors(
    snippet: str, run_snippet: Callable[[str], dict[str, Any]], assert_known: Callable[..., None]
) -> None:
    assert_known(run_snippet(snippet)["embeddings"], [GUITAR, MUSIC])


@pytest.mark.parametrize("which", [0, 1])
def test_queries_texts_and_several_batches_get_their_vectors(
    which: int, url: str, assert_known: Callable[..., None]
) -> None:
    """35 texts are four requests, ten texts each by default."""
    client = clients(url)[which]
    assert_known([client.get_query_embedding(MUSIC)], [MUSIC])
    assert_known([client.get_text_embedding(GUITAR)], [GUITAR])
    assert_known(client.get_text_embedding_batch(MANY), MANY)


@pytest.mark.parametrize("which", [0, 1])
def test_the_async_half_gets_the_same(
    which: int, url: str, assert_known: Callable[..., None]
) -> None:
    client = clients(url)[which]
    assert_known(asyncio.run(client.aget_text_embedding_batch(MANY)), MANY)


def test_a_text_that_is_too_long_is_cut(url: str, assert_known: Callable[..., None]) -> None:
    long = "music " * 2000
    assert_known([clients(url)[0].get_text_embedding(long)], [long], truncate=True)
