"""LiteLLM and Voyage's own library against the service."""

import asyncio
from collections.abc import Callable
from typing import Any

import litellm
import pytest
import voyageai

GUITAR, MUSIC = "A man is playing a guitar.", "Someone plays music."


@pytest.mark.parametrize("snippet", ["litellm", "voyage"])
def test_the_pages_snippet_gives_the_vectors(
    snippet: str, run_snippet: Callable[[str], dict[str, Any]], assert_known: Callable[..., None]
) -> None:
    assert_known(run_snippet(snippet)["embeddings"], [GUITAR, MUSIC])


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}, {"dimensions": 8}])
def test_litellms_options_are_honoured(
    options: dict[str, Any], url: str, assert_known: Callable[..., None]
) -> None:
    """Without an encoding_format this version leaves the field out and takes floats."""
    answer = asyncio.run(
        litellm.aembedding(
            model="openai/text-embedding-3-small",  # the library takes dimensions for these names
            input=[GUITAR, MUSIC],
            api_base=f"{url}/v1",
            api_key="any",
            **options,
        )
    )
    known_as = {"dimensions": options["dimensions"]} if "dimensions" in options else {}
    assert_known([item["embedding"] for item in answer.data], [GUITAR, MUSIC], **known_as)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 15


def test_litellms_errors_have_its_own_class(url: str) -> None:
    with pytest.raises(litellm.BadRequestError, match="input holds token ids"):
        litellm.embedding(
            model="openai/s2sent", input=[[1, 2]], api_base=f"{url}/v1", api_key="any"
        )


def test_voyages_input_type_is_taken_by_a_model_without_prompts(
    url: str, assert_known: Callable[..., None]
) -> None:
    client = voyageai.Client(api_key="any", base_url=f"{url}/v1")
    answer = client.embed([MUSIC], model="s2sent", input_type="query", truncation=True)
    assert_known(answer.embeddings, [MUSIC])
    assert answer.total_tokens == 6
