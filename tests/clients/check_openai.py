"""openai-python against the service: encodings, lists, error classes, waiting, sync and async."""

import base64
import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

GUITAR, MUSIC = "A man is playing a guitar.", "Someone plays music."


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("snippet", ["openai", "raw"])
def test_the_pages_snippet_gives_the_vectors(
    snippet: str, run_snippet: Callable[[str], dict[str, Any]], assert_known: Callable[..., None]
) -> None:
    assert_known(run_snippet(snippet)["embeddings"], [GUITAR, MUSIC])


def test_a_single_text_is_a_list_of_one(client: OpenAI, assert_known: Callable[..., None]) -> None:
    answer = client.embeddings.create(model="any", input=GUITAR)
    assert_known([item.embedding for item in answer.data], [GUITAR])
    assert answer.object == "list"
    assert answer.data[0].object == "embedding"
    assert answer.data[0].index == 0
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 9


def test_floats_are_floats_and_base64_is_little_endian_float32(
    client: OpenAI, assert_known: Callable[..., None]
) -> None:
    """Asked for base64 by name, the library hands over the text it got."""
    floats = client.embeddings.create(model="m", input=[GUITAR, MUSIC], encoding_format="float")
    assert_known([item.embedding for item in floats.data], [GUITAR, MUSIC])
    packed = client.embeddings.create(model="m", input=[GUITAR, MUSIC], encoding_format="base64")
    rows = [np.frombuffer(base64.b64decode(str(item.embedding)), "<f4") for item in packed.data]
    assert_known(rows, [GUITAR, MUSIC])


def test_dimensions_are_cut_and_normalised(
    client: OpenAI, assert_known: Callable[..., None]
) -> None:
    answer = client.embeddings.create(model="m", input=[GUITAR], dimensions=16)
    assert_known([answer.data[0].embedding], [GUITAR], dimensions=16)


def test_as_many_texts_as_openai_takes_are_answered_in_order(
    client: OpenAI, assert_known: Callable[..., None]
) -> None:
    texts = [f"This is sentence number {number}." for number in range(2048)]
    answer = client.embeddings.create(model="m", input=texts)
    assert [item.index for item in answer.data] == list(range(2048))
    some = range(0, 2048, 97)
    assert_known([answer.data[i].embedding for i in some], [texts[i] for i in some])


@pytest.mark.parametrize("ids", [[101, 2023, 102], [[101, 2023, 102], [7592]]])
def test_token_ids_are_refused_with_the_cure(client: OpenAI, ids: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.embeddings.create(model="m", input=ids)
    assert refusal.value.status_code == 400
    assert refusal.value.param == "input"
    assert refusal.value.code == "Validation"
    assert refusal.value.type == "invalid_request_error"
    assert "check_embedding_ctx_length=False" in refusal.value.message


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        ({"input": ""}, "Empty", "input"),
        ({"input": []}, "Empty", "input"),
        ({"input": ["a", ""]}, "Empty", "input[1]"),
        ({"input": "a", "dimensions": 0}, "Validation", "dimensions"),
        ({"input": "a", "dimensions": 10**6}, "Validation", "dimensions"),
        ({"input": "a", "encoding_format": "int4"}, "Validation", "encoding_format"),
    ],
)
def test_bad_requests_have_a_class_a_code_and_a_param(
    client: OpenAI, request_: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.embeddings.create(model="m", **request_)
    assert (refusal.value.code, refusal.value.param) == (code, param)
    assert refusal.value.request_id


def test_too_many_texts_are_413(client: OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as refusal:
        client.embeddings.create(model="m", input=["a"] * 2049)
    assert refusal.value.status_code == 413
    assert "2049" in refusal.value.message
    assert "2048" in refusal.value.message


def test_an_unknown_route_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refusal:
        client.chat.completions.create(model="m", messages=[])
    assert refusal.value.code == "NotFound"


def test_the_one_model_is_listed(client: OpenAI) -> None:
    (model,) = client.models.list()
    assert model.object == "model"
    assert client.embeddings.create(model=model.id, input="a").model == model.id


async def embed_many(url: str, texts: list[str]) -> list[list[float]]:
    import asyncio

    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
        requests = [client.embeddings.create(model="m", input=text) for text in texts]
        return [answer.data[0].embedding for answer in await asyncio.gather(*requests)]


def test_many_async_requests_at_one_time_each_get_their_own_vector(
    url: str, assert_known: Callable[..., None]
) -> None:
    import asyncio

    texts = [f"Request {number} has its own text." for number in range(64)]
    assert_known(asyncio.run(embed_many(url, texts)), texts)


class BusyServer:
    """A service with room for one request, and that one a long one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.rejected = 0.0

    def keep_busy(self) -> threading.Thread:
        """Sends a request of some seconds and returns when it is being worked on."""
        body = json.dumps({"inputs": [f"{number} " * 300 for number in range(100)]}).encode()
        thread = threading.Thread(target=self._post, args=(body,))
        thread.start()
        while self.metric("s2sent_requests_in_flight") < 2:  # the long one, and this question
            assert thread.is_alive()
        self.rejected = self.refusals()
        return thread

    def refusals(self) -> float:
        time.sleep(1)  # the age that an answer of /metrics may have
        return self.metric('s2sent_requests_rejected_total{reason="concurrency"}')

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/embed", data=body, headers=headers)
        urllib.request.urlopen(request).close()


@pytest.fixture
def busy() -> Iterator[BusyServer]:
    server = BusyServer(os.environ["CLIENTS_BUSY_URL"])
    thread = server.keep_busy()
    yield server
    thread.join()


def test_a_full_service_is_a_rate_limit_error_that_says_when(busy: BusyServer) -> None:
    with (
        OpenAI(base_url=f"{busy.url}/v1", api_key="any", max_retries=0) as client,
        pytest.raises(openai.RateLimitError) as refusal,
    ):
        client.embeddings.create(model="m", input="a")
    assert refusal.value.code == "Overloaded"
    assert int(refusal.value.response.headers["retry-after"]) >= 1


def test_retries_wait_as_long_as_the_service_says_and_then_succeed(
    busy: BusyServer, assert_known: Callable[..., None]
) -> None:
    """By itself the library would first wait half a second; Retry-After is at least one."""
    with OpenAI(base_url=f"{busy.url}/v1", api_key="any", max_retries=100) as client:
        began = time.monotonic()
        answer = client.embeddings.create(model="m", input=GUITAR)
        waited = time.monotonic() - began
    refusals = busy.refusals() - busy.rejected
    assert refusals >= 1
    assert waited >= refusals
    assert_known([answer.data[0].embedding], [GUITAR])
