"""/tokenize and /decode: what text-embeddings-inference's clients send and get."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import httpx
import pytest

from s2sent.model.artifact.manifest import TOKENIZER
from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.parity import parity_sentences
from s2sent.model.runtime.tokenizer import Tokenizer
from s2sent.service.app import create_app
from s2sent.service.engine.admission import MAX_CHARACTERS
from s2sent.service.engine.tokenization import SLICE_CHARACTERS
from s2sent.service.settings import DEFAULT_ARTIFACT
from tests.support.fake_model import PANIC, FakeTokenizer, Harness, serving

default_artifact = cache(lambda: Artifact.open(DEFAULT_ARTIFACT))


@cache
def default_tokenizer() -> Tokenizer:
    artifact = default_artifact()
    return Tokenizer(artifact.read(TOKENIZER), artifact.manifest.max_seq_length)


@asynccontextmanager
async def tokenizing(**options: Any) -> AsyncIterator[tuple[Harness, httpx.AsyncClient]]:
    """An engine that serves, and a client of the application around it."""
    async with serving(**options) as harness:
        app = create_app(harness.settings, engine=harness.engine, metrics=harness.metrics)
        yield (
            harness,
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app, raise_app_exceptions=False),
                base_url="http://test",
            ),
        )


async def sent(
    path: str, body: dict[str, Any], *, default_prompt: str | None = None, **settings: Any
) -> httpx.Response:
    """The answer of a service with the default artifact's vocabulary, and two prompts."""
    artifact = default_artifact()
    prompting = replace(
        artifact.manifest,
        prompts={"query": "query: ", "none": ""},
        default_prompt_name=default_prompt,
    )
    served = replace(artifact, manifest=prompting)
    async with tokenizing(artifact=served, tokenizer=default_tokenizer(), **settings) as (
        _,
        client,
    ):
        return await client.post(path, json=body)


async def post(path: str, body: dict[str, Any]) -> Any:
    response = await sent(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def token(id_: int, text: str, start: int, stop: int) -> dict[str, Any]:
    return {"id": id_, "text": text, "special": False, "start": start, "stop": stop}


def special(id_: int, text: str) -> dict[str, Any]:
    return {"id": id_, "text": text, "special": True, "start": None, "stop": None}


CLS, SEP = special(101, "[CLS]"), special(102, "[SEP]")


async def test_tokens_have_their_own_text_and_their_place_in_bytes() -> None:
    """An accent is two bytes of UTF-8, an emoji four; special tokens have no place."""
    tokens = await post("/tokenize", {"inputs": "Héllo 😀 guitar"})
    hello, emoji, guitar = token(7592, "Héllo", 0, 6), token(100, "😀", 7, 11), (2858, "guitar")
    assert tokens == [[CLS, hello, emoji, token(*guitar, 12, 18), SEP]]


async def test_every_text_of_a_list_is_answered_in_order() -> None:
    tokens = await post("/tokenize", {"inputs": ["music", "a guitar"]})
    assert [[one["text"] for one in text] for text in tokens] == [
        ["[CLS]", "music", "[SEP]"],
        ["[CLS]", "a", "guitar", "[SEP]"],
    ]


async def test_special_tokens_can_be_left_out() -> None:
    body = {"inputs": "guitar", "add_special_tokens": False}
    assert await post("/tokenize", body) == [[token(2858, "guitar", 0, 6)]]


async def test_places_count_the_prompt() -> None:
    (tokens,) = await post("/tokenize", {"inputs": "guitar", "prompt_name": "query"})
    assert [one["text"] for one in tokens] == ["[CLS]", "query", ":", "guitar", "[SEP]"]
    assert tokens[3]["start"] == len("query: ")


async def test_ids_are_those_that_are_embedded() -> None:
    texts = list(parity_sentences())
    tokenizer = default_tokenizer()
    embedded = [row.input_ids for row in tokenizer.tokenize(texts) if not row.truncated]
    answered = [[one["id"] for one in text] for text in await post("/tokenize", {"inputs": texts})]
    assert [ids for ids in answered if len(ids) <= tokenizer.max_seq_length] == embedded


async def test_texts_are_not_cut() -> None:
    """Also over several slices, whose answers are put together in order."""
    texts = ["music " * SLICE_CHARACTERS, "a", "guitar " * 3000, "b"]
    tokens = await post("/tokenize", {"inputs": texts})
    assert [len(text) for text in tokens] == [SLICE_CHARACTERS + 2, 3, 3002, 3]
    assert [text[1]["text"] for text in tokens] == ["music", "a", "guitar", "b"]


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ({"ids": [101, 1037, 2858, 102]}, ["a guitar"]),
        ({"ids": [[1037, 2858], [2189]]}, ["a guitar", "music"]),
        ({"ids": [101, 2189, 102], "skip_special_tokens": False}, ["[CLS] music [SEP]"]),
        ({"ids": [101, 2189, 102], "skip_special_tokens": None}, ["music"]),
        ({"ids": [101]}, [""]),
    ],
)
async def test_decode_answers_the_text_of_ids(body: dict[str, Any], texts: list[str]) -> None:
    assert await post("/decode", body) == texts


@pytest.mark.parametrize(
    ("path", "body", "status", "error_type"),
    [
        ("/tokenize", {}, 422, "Validation"),
        ("/tokenize", {"inputs": [1, 2]}, 422, "Validation"),
        ("/tokenize", {"inputs": ["a", ["b"]]}, 422, "Validation"),
        ("/tokenize", {"inputs": ""}, 400, "Empty"),
        ("/tokenize", {"inputs": []}, 400, "Empty"),
        ("/tokenize", {"inputs": ["a", ""]}, 400, "Empty"),
        ("/tokenize", {"inputs": "a", "add_special_tokens": "yes"}, 422, "Validation"),
        ("/tokenize", {"inputs": "a", "prompt_name": "nope"}, 422, "Validation"),
        ("/tokenize", {"inputs": ["a"] * 2049}, 413, "PayloadTooLarge"),
        ("/tokenize", {"inputs": "a" * (MAX_CHARACTERS + 1)}, 413, "PayloadTooLarge"),
        ("/decode", {}, 422, "Validation"),
        ("/decode", {"ids": "a"}, 422, "Validation"),
        ("/decode", {"ids": [1.5]}, 422, "Validation"),
        ("/decode", {"ids": [-1]}, 422, "Validation"),
        ("/decode", {"ids": [[1], 2]}, 422, "Validation"),
        ("/decode", {"ids": [30522]}, 422, "Validation"),
        ("/decode", {"ids": [2**64]}, 422, "Validation"),
        ("/decode", {"ids": []}, 400, "Empty"),
        ("/decode", {"ids": [[1], []]}, 400, "Empty"),
        ("/decode", {"ids": [[1]] * 2049}, 413, "PayloadTooLarge"),
        ("/decode", {"ids": [1] * (MAX_CHARACTERS + 1)}, 413, "PayloadTooLarge"),
    ],
)
async def test_errors_have_the_native_envelope(
    path: str, body: dict[str, Any], status: int, error_type: str
) -> None:
    response = await sent(path, body)
    assert (response.status_code, response.json()["error_type"]) == (status, error_type)
    assert set(response.json()) == {"error", "error_type"}


async def test_an_id_beyond_64_bits_is_refused_as_another_outside_the_vocabulary() -> None:
    response = await sent("/decode", {"ids": [5, 2**64]})
    assert response.json()["error"].startswith("ids has 18446744073709551616; this vocabulary has")


@pytest.mark.parametrize("path", ["/tokenize", "/decode"])
async def test_a_key_is_needed_where_keys_are_set(path: str) -> None:
    response = await sent(path, {}, api_keys="k")
    assert response.status_code == 401


async def test_a_service_that_drains_refuses_tokenizing_too() -> None:
    async with tokenizing() as (harness, client):
        await harness.engine.drain(1)
        for path, body in (("/tokenize", {"inputs": "a"}), ("/decode", {"ids": [1]})):
            response = await client.post(path, json=body)
            assert (response.status_code, response.json()["error_type"]) == (503, "Unhealthy")
            assert response.headers["retry-after"] == "1"


async def test_a_panic_of_the_tokenizer_is_a_500_in_the_envelope() -> None:
    async with tokenizing(artifact=default_artifact(), tokenizer=FakeTokenizer()) as (_, client):
        for path in ("/tokenize", "/embed"):
            response = await client.post(path, json={"inputs": PANIC})
            assert response.status_code == 500
            assert response.json()["error_type"] == "Internal"
            assert (await client.post(path, json={"inputs": "a"})).status_code == 200


@pytest.mark.parametrize(("named", "words"), [({}, 4), ({"prompt_name": "none"}, 2)], ids=str)
async def test_the_models_default_prompt_stands_before_texts_without_one(
    named: dict[str, str], words: int
) -> None:
    body = {"inputs": "red cat", "add_special_tokens": False, **named}
    answer = await sent("/tokenize", body, default_prompt="query")
    assert len([token for token in answer.json()[0] if not token["special"]]) == words
