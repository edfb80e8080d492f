"""/tokenize and /decode: what text-embeddings-inference's clients send and get."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from model.artifact.reader import Artifact
from model.export.parity import parity_sentences
from model.runtime.tokenizer import Tokenizer
from service.engine.tokenization import MAX_CHARACTERS, SLICE_CHARACTERS, TokenWork
from service.engine.vocabulary import Vocabulary
from service.errors import DeadlineExceeded, Overloaded
from service.metrics import Metrics
from service.settings import DEFAULT_ARTIFACT, Settings
from tests.support.fake_engine import FakeEngine, client_of

default_artifact = cache(lambda: Artifact.open(DEFAULT_ARTIFACT))


def engine_with_tokenizer() -> FakeEngine:
    """A fake that serves the default artifact's vocabulary, and a prompt."""
    engine, artifact = FakeEngine(), default_artifact()
    manifest = replace(artifact.manifest, prompts={"query": "query: "})
    engine.artifact = replace(artifact, manifest=manifest)
    return engine


async def post(path: str, body: dict[str, Any], **settings: Any) -> Any:
    response = await client_of(engine_with_tokenizer(), **settings).post(path, json=body)
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
    artifact = default_artifact()
    tokenizer = Tokenizer(artifact.tokenizer_path, artifact.manifest.max_seq_length)
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
    response = await client_of(engine_with_tokenizer()).post(path, json=body)
    assert (response.status_code, response.json()["error_type"]) == (status, error_type)
    assert set(response.json()) == {"error", "error_type"}


@pytest.mark.parametrize("path", ["/tokenize", "/decode"])
async def test_a_key_is_needed_where_keys_are_set(path: str) -> None:
    response = await client_of(engine_with_tokenizer(), api_keys="k").post(path, json={})
    assert response.status_code == 401


def work_of(engine: FakeEngine, metrics: Metrics, **settings: Any) -> TokenWork:
    return TokenWork(engine, Settings(**settings), metrics)


def blocked_until(gate: threading.Event, begun: asyncio.Event) -> Callable[[Vocabulary, str], str]:
    """Work that waits in its thread, and says on the loop that it has begun."""
    loop = asyncio.get_running_loop()

    def work(_vocabulary: Vocabulary, item: str) -> str:
        loop.call_soon_threadsafe(begun.set)
        gate.wait()
        return item

    return work


LONG = ["x" * SLICE_CHARACTERS]


async def test_long_work_leaves_the_loop_free() -> None:
    """The loop itself lets the work go on; on the loop, the work would wait for ever."""
    gate, begun = threading.Event(), asyncio.Event()
    work = work_of(engine_with_tokenizer(), Metrics())
    running = asyncio.create_task(work.each(LONG, blocked_until(gate, begun), timeout_seconds=60))
    await begun.wait()
    gate.set()
    assert await running == b'["' + LONG[0].encode() + b'"]'


async def test_a_request_too_many_is_refused_at_once_and_counted() -> None:
    gate, begun, metrics = threading.Event(), asyncio.Event(), Metrics()
    work = work_of(engine_with_tokenizer(), metrics, max_concurrent_requests=1)
    blocked = blocked_until(gate, begun)
    running = asyncio.create_task(work.each(LONG, blocked, timeout_seconds=60))
    await begun.wait()
    with pytest.raises(Overloaded) as refusal:
        await work.each(["a"], blocked, timeout_seconds=60)
    gate.set()
    await running
    assert refusal.value.retry_after_seconds == 1
    refused = metrics.registry.get_sample_value
    assert refused("s2sent_requests_rejected_total", {"reason": "concurrency"}) == 1
    assert await work.each(["a"], lambda _, item: item, timeout_seconds=60) == b'["a"]'


async def test_the_deadline_holds() -> None:
    gate, begun, metrics = threading.Event(), asyncio.Event(), Metrics()
    work = work_of(engine_with_tokenizer(), metrics)
    with pytest.raises(DeadlineExceeded):
        await work.each(LONG, blocked_until(gate, begun), timeout_seconds=0.01)
    gate.set()
    late = metrics.registry.get_sample_value
    assert late("s2sent_requests_timed_out_total", {"stage": "tokenize"}) == 1


async def test_a_client_that_leaves_ends_the_work_with_its_slice() -> None:
    gate, begun, metrics = threading.Event(), asyncio.Event(), Metrics()
    seen: list[str] = []
    work = work_of(engine_with_tokenizer(), metrics)
    first = blocked_until(gate, begun)

    def remember(vocabulary: Vocabulary, item: str) -> str:
        seen.append(item)
        return first(vocabulary, item)

    running = asyncio.create_task(work.each(LONG * 3, remember, timeout_seconds=60))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    gate.set()
    assert await work.each(["a"], lambda _, item: item, timeout_seconds=60) == b'["a"]'
    assert seen == LONG
    left = metrics.registry.get_sample_value
    assert left("s2sent_requests_cancelled_total", {"stage": "tokenize"}) == 1
