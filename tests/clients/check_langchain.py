"""langchain-openai against the service."""

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

GUITAR, MUSIC = "A man is playing a guitar.", "Someone plays music."


@pytest.fixture
def model(url: str) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(
        model="s2sent",
        base_url=f"{url}/v1",
        api_key=SecretStr("any"),
        check_embedding_ctx_length=False,
    )


def test_the_pages_snippet_gives_the_vectors(
    run_snippet: Callable[[str], dict[str, Any]], assert_known: Callable[..., None]
) -> None:
    assert_known(run_snippet("langchain")["embeddings"], [GUITAR, MUSIC])


def test_a_query_is_one_vector(model: OpenAIEmbeddings, assert_known: Callable[..., None]) -> None:
    assert_known([model.embed_query(MUSIC)], [MUSIC])
    assert_known([asyncio.run(model.aembed_query(MUSIC))], [MUSIC])


def test_1500_texts_come_back_in_order(
    model: OpenAIEmbeddings, assert_known: Callable[..., None]
) -> None:
    """In two requests, of 1000 and of 500 texts."""
    texts = [f"Text {number} of many." for number in range(1500)]
    rows = model.embed_documents(texts)
    assert len(rows) == 1500
    some = [0, 1, 499, 998, 999, 1000, 1001, 1250, 1499]
    assert_known([rows[index] for index in some], [texts[index] for index in some])


def test_token_ids_are_answered_with_the_setting_to_change(url: str) -> None:
    """What the library sends without that setting; its tokenizer would have to be downloaded."""
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"),
    ):
        client.embeddings.create(model="m", input=[[32, 893, 374, 5737, 264, 17418, 13]])
