"""Chroma's embedding function for such servers, with a collection in memory."""

from collections.abc import Callable
from typing import Any

from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer

GUITAR, MUSIC, STOCKS = (
    "A man is playing a guitar.",
    "Someone plays music.",
    "The stock market fell.",
)


def test_the_pages_snippet_stores_the_vectors_and_finds_the_nearest(
    run_snippet: Callable[[str], dict[str, Any]], assert_known: Callable[..., None]
) -> None:
    variables = run_snippet("chroma")
    stored = variables["collection"].get(ids=["a", "b"], include=["embeddings"])
    assert_known(stored["embeddings"], [GUITAR, STOCKS])
    assert variables["found"]["ids"] == [["a"]]


def test_long_documents_are_cut_and_many_come_in_order(
    url: str, assert_known: Callable[..., None]
) -> None:
    """Chroma looks at no status: one document too long would end an ingestion."""
    texts = ["music " * 3000, *(f"Text {number} of many." for number in range(100))]
    assert_known(HuggingFaceEmbeddingServer(url=f"{url}/embed")(texts), texts)
