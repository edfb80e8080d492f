"""Embedding through a service that is busy, breaks, refuses texts or goes away."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest

from s2sent.service.bulk.embedders import remote
from s2sent.service.bulk.embedders.remote import RemoteEmbedder
from s2sent.service.bulk.job import BulkError, Options
from tests.support.fake_embed_service import BROKEN, INFO, FakeService, embed
from tests.support.fake_embedder import DIM, vector_of
from tests.support.serving import serving


@pytest.fixture
def service() -> Iterator[FakeService]:
    """A service on a free port."""
    with serving(FakeService()) as server:
        yield server


TEXTS = [f"text {number}" for number in range(20)]


def test_texts_go_out_in_requests_that_the_service_takes(service: FakeService) -> None:
    embedded, pauses = embed(service, TEXTS, Options(depth=2, prompt_name="query"))
    np.testing.assert_array_equal(embedded.vectors, [vector_of(text) for text in TEXTS])
    assert sorted(len(body["inputs"]) for body in service.bodies) == [4, 8, 8]
    assert service.bodies[0]["depth"] == 2
    assert service.bodies[0]["prompt_name"] == "query"
    assert service.headers[0]["Authorization"] == "Bearer k"
    assert service.headers[0]["x-priority"] == "bulk"
    assert embedded.tokens.tolist() == [len(text) for text in TEXTS]
    assert pauses == []


def test_the_defaults_of_a_service_do_not_change_what_a_run_gets(service: FakeService) -> None:
    """Full depth and all components are asked for where the run does not say."""
    defaults = {"full_depth": 4, "default_depth": 2, "default_dimensions": 3}
    service.info = orjson.dumps(INFO | defaults)
    embed(service, TEXTS)
    assert {(body["depth"], body["dimensions"]) for body in service.bodies} == {(4, DIM)}


def test_tokens_cuts_and_failed_texts_are_those_of_the_answer(service: FakeService) -> None:
    texts = ["short", "null one", "a text of more than twenty characters"]
    embedded, _ = embed(service, texts)
    assert embedded.tokens.tolist() == [5, 0, 37]
    assert embedded.truncated.tolist() == [False, False, True]
    assert embedded.errors == {1: "the service cannot embed the text (Backend)"}
    np.testing.assert_array_equal(embedded.vectors[2], vector_of(texts[2]))


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_asked_again_when_it_says(service: FakeService, status: int) -> None:
    service.faults = [status] * 12
    embedded, pauses = embed(service, TEXTS)
    np.testing.assert_array_equal(embedded.vectors, [vector_of(text) for text in TEXTS])
    assert pauses == [7.0] * 12


@pytest.mark.parametrize("status", [BROKEN, 500, 504])
def test_faults_are_tried_again_after_growing_pauses(service: FakeService, status: int) -> None:
    service.faults = [status] * 3
    embedded, pauses = embed(service, TEXTS[:5])
    np.testing.assert_array_equal(embedded.vectors, [vector_of(text) for text in TEXTS[:5]])
    assert pauses == [0.5, 1.0, 2.0]


def test_a_service_that_is_gone_ends_the_run(service: FakeService) -> None:
    service.faults = [500] * 100
    with pytest.raises(BulkError, match="500 Not now.* after 9 tries.*--resume"):
        embed(service, TEXTS[:5])


def test_a_refused_text_is_found_and_the_others_are_embedded(service: FakeService) -> None:
    texts = [*TEXTS[:10], "bad one", *TEXTS[10:], "bad two"]
    embedded, _ = embed(service, texts)
    assert embedded.errors == dict.fromkeys((10, 21), "the service refused the text: A text is bad")
    for at in set(range(len(texts))) - {10, 21}:
        np.testing.assert_array_equal(embedded.vectors[at], vector_of(texts[at]))


@pytest.mark.parametrize(
    ("key", "cure"),
    [
        ("k", "Write a key that the service accepts to the"),
        ("", "Name a file with an API key .* by"),
    ],
)
def test_a_key_that_is_not_known_ends_the_run(service: FakeService, key: str, cure: str) -> None:
    service.faults = [401]
    with pytest.raises(
        BulkError, match=rf"/embed answered 401 Not now\. {cure} .*--server-key-file\.$"
    ):
        embed(service, TEXTS[:5], key=key)


def test_a_path_that_is_not_there_is_told_in_the_words_of_the_server(service: FakeService) -> None:
    service.info = b""  # 404
    service.not_found = b'{"error":{"message":"There is no /base/info.","type":"not_found"}}'
    cure = f"Give --server the address without a path, as in {service.url.removesuffix('/base/')}"
    with pytest.raises(BulkError, match=rf"answered 404 There is no /base/info\. {cure}\.$"):
        RemoteEmbedder(service.url, Options())


def test_a_404_of_an_address_without_a_path_asks_for_a_look_at_it(service: FakeService) -> None:
    with pytest.raises(BulkError, match=r"/info answered 404 null\. Check --server\.$"):
        RemoteEmbedder(service.url.removesuffix("/base/"), Options())


def test_a_key_beyond_ascii_is_sent_as_utf_8(service: FakeService) -> None:
    embed(service, TEXTS[:1], key="k€y")
    assert service.headers[0]["Authorization"].encode("latin-1").decode() == "Bearer k€y"


@pytest.mark.parametrize(("name", "sent"), [(None, None), ("", ""), ("query", "query")])
def test_no_prompt_is_asked_for_by_an_empty_name(
    service: FakeService, name: str | None, sent: str | None
) -> None:
    embed(service, TEXTS[:1], Options(prompt_name=name))
    assert service.bodies[0].get("prompt_name") == sent


URLS = ["localhost:80", "http://[::1", "http://h:99999", "http://h:x", "http://a b", "http://h/ü"]


@pytest.mark.parametrize(
    "url", [*URLS, "http://", "http://a..b", "http://h/a\nb", "http://h?a", "http://a:b@h"]
)
def test_a_url_that_no_request_can_be_sent_to_is_refused_at_once(url: str) -> None:
    with pytest.raises(BulkError, match=r"--server is 'h?.*'; write a URL as in"):
        RemoteEmbedder(url, Options(), sleep=lambda _seconds: True)


@pytest.mark.parametrize(
    "info",
    [b"<html></html>", b"{}", b"[]", b"null", INFO | {"dim": None}, INFO | {"depths": 1}],
    ids=str,
)
def test_another_service_is_a_sentence(service: FakeService, info: bytes | dict[str, Any]) -> None:
    service.info = info if isinstance(info, bytes) else orjson.dumps(info)
    with pytest.raises(BulkError, match=r"/base/info does not answer as .*Check --server\."):
        RemoteEmbedder(service.url, Options())


@pytest.mark.parametrize("models", [b"<html>", b"[]", b'{"data":[]}', b'{"data":[1,2]}'], ids=str)
def test_another_list_of_models_is_a_sentence(service: FakeService, models: bytes) -> None:
    service.models = models
    with pytest.raises(BulkError, match=r"/base/v1/models does not answer as .*Check --server\."):
        RemoteEmbedder(service.url, Options())


def test_an_answer_of_another_model_ends_the_run(service: FakeService) -> None:
    with pytest.raises(BulkError, match=f"another model .* are {'e' * 64} and were {'f' * 64}"):
        embed(service, [*TEXTS, "changed"])


@pytest.mark.parametrize("waits_for", ["its next try", "an answer", "its next connection"])
def test_closing_ends_what_waits(service: FakeService, waits_for: str) -> None:
    embedder = RemoteEmbedder(service.url, Options())
    if waits_for == "its next try":
        service.faults = [503] * 100
    else:
        service.faults = [BROKEN] * (waits_for == "its next connection")
        service.gate.clear()
    sent = 2 if waits_for == "its next connection" else 1
    pending = embedder.start(TEXTS[:5])
    while len(service.headers) < sent:
        time.sleep(0.01)
    embedder.close()  # before an answer, which the gate holds back
    assert all(run.done() for run in pending.runs)
    assert len(service.headers) == sent
    service.gate.set()


def test_long_texts_make_smaller_requests(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BODY_BYTES", 20)
    embed(service, ["a" * 15, "b" * 15, "c", "d", "e" * 50])
    sizes = sorted([len(body["inputs"]) for body in service.bodies])
    assert sizes == [1, 1, 3]
