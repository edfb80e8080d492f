"""huggingface_hub's InferenceClient and Haystack, which is built on it, against the service."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from haystack import Document
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError

GUITAR, MUSIC, STOCKS = (
    "A man is playing a guitar.",
    "Someone plays music.",
    "The stock market fell.",
)


def test_the_pages_snippet_gives_the_vector(
    run_snippet: Callable[[str], dict[str, Any]], assert_known: Callable[..., None]
) -> None:
    embeddings = run_snippet("huggingface")["embeddings"]
    assert embeddings.dtype == np.float32
    assert_known(embeddings, [GUITAR])


def test_the_pages_similarities_are_the_cosines(
    run_snippet: Callable[[str], dict[str, Any]], known: Callable[..., Any]
) -> None:
    source, music, stocks = known([GUITAR, MUSIC, STOCKS])
    scores = run_snippet("huggingface-similarity")["scores"]
    np.testing.assert_allclose(scores, [source @ music, source @ stocks], atol=1e-5)


@pytest.mark.parametrize("path", ["", "/", "/embed"])
def test_the_bare_url_embeds_too(path: str, url: str, assert_known: Callable[..., None]) -> None:
    client = InferenceClient(base_url=url + path)
    assert_known(client.feature_extraction(MUSIC), [MUSIC])


def test_options_are_honoured(url: str, assert_known: Callable[..., None]) -> None:
    client = InferenceClient(f"{url}/embed")
    assert_known(client.feature_extraction(MUSIC, normalize=False), [MUSIC], normalize=False)
    assert_known(client.feature_extraction(MUSIC, dimensions=8), [MUSIC], dimensions=8)
    long = "music and then " * 400 + "a guitar"
    for side in ("left", "right"):
        given = client.feature_extraction(long, truncate=True, truncation_direction=side.title())
        assert_known(given, [long], truncation_direction=side)


def test_the_async_client_gets_the_same(url: str, assert_known: Callable[..., None]) -> None:
    async def embed() -> Any:
        async with AsyncInferenceClient(f"{url}/embed") as client:
            return await client.feature_extraction(MUSIC)

    assert_known(asyncio.run(embed()), [MUSIC])


@pytest.mark.parametrize(
    ("options", "status", "sentence"),
    [
        ({"text": ""}, 400, "empty"),
        ({"text": "a", "prompt_name": "nope"}, 422, "prompt_name is 'nope'"),
        ({"text": "a " * 1000, "truncate": False}, 422, "tokens; the limit is"),
        ({"text": "a", "dimensions": 10**6}, 422, "dimensions is 1000000"),
    ],
)
def test_errors_carry_the_services_own_sentence(
    url: str, options: dict[str, Any], status: int, sentence: str
) -> None:
    with pytest.raises(HfHubHTTPError) as refusal:
        InferenceClient(f"{url}/embed").feature_extraction(**options)
    assert refusal.value.response.status_code == status
    assert sentence in refusal.value.response.json()["error"]


def test_haystacks_snippet_gives_the_vectors(
    run_snippet: Callable[[str], dict[str, Any]], assert_known: Callable[..., None]
) -> None:
    assert_known(run_snippet("haystack")["embeddings"], [MUSIC, GUITAR])


def test_haystacks_own_default_is_not_normalised(
    url: str, assert_known: Callable[..., None]
) -> None:
    embedder = HuggingFaceAPITextEmbedder("text_embeddings_inference", {"url": url})
    given = embedder.run(text=MUSIC)["embedding"]
    assert_known([given], [MUSIC], normalize=False)
    assert not np.isclose(np.linalg.norm(given), 1, atol=0.01)


def test_haystack_embeds_more_documents_than_one_batch(
    url: str, assert_known: Callable[..., None]
) -> None:
    """Batches of 32, asked for one after the other or, by the async half, at one time."""
    texts = [f"Document {number} speaks of music." for number in range(70)]
    embedder = HuggingFaceAPIDocumentEmbedder(
        "text_embeddings_inference", {"url": url}, progress_bar=False
    )
    answer = embedder.run(documents=[Document(content=text) for text in texts])
    assert_known([one.embedding for one in answer["documents"]], texts, normalize=False)
    running = embedder.run_async(documents=[Document(content=text) for text in texts])
    answer = asyncio.run(running)
    assert_known([one.embedding for one in answer["documents"]], texts, normalize=False)
