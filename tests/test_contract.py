"""The contract of text-embeddings-inference's HTTP routes, as assertions that any server can take.

By default they run against this service. With the variable CONTRACT_URL they run against whatever
listens there, text-embeddings-inference (TEI) 1.9 for one:

    CONTRACT_URL=http://localhost:3000 pytest tests/test_contract.py -rs

Limits are read from /info, so a server may have others; what else differs is in `Dialect`, or said
beside the assertion. What needs a server with settings of its own starts this service and is
skipped with CONTRACT_URL.
"""

import base64
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from s2sent.service.settings import DEFAULT_ARTIFACT
from tests.support.exposition import settled
from tests.support.server_process import LOCAL, running_server

pytestmark = pytest.mark.usefixtures("each_form")

FOREIGN_URL = os.environ.get("CONTRACT_URL")
OWN_SETTINGS = pytest.mark.skipif(
    FOREIGN_URL is not None, reason="needs a server started with settings of its own"
)
# Half precision on a GPU moves a component by up to this; here a batch moves it by less than 1e-5.
TOLERANCE = 2e-3 if FOREIGN_URL else 1e-5

HEADERS = ("x-compute-type", "x-compute-time", "x-compute-characters", "x-compute-tokens") + (
    *("x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"),
)
REQUESTS_AT_STOP = 4
RIGHT = "Bearer right"
TEXTS = ["A man is playing a guitar.", "Someone plays music.", "The stock market fell."]

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Dialect:
    """Where two servers that keep the contract differ."""

    too_many: int  # status for more texts than a request may have
    waiting: str  # metric of the texts that wait
    dropped: str  # counter of work given up because its client left
    dropped_label: dict[str, str]


S2SENT = Dialect(413, "s2sent_queue_texts", "s2sent_requests_cancelled_total", {})
TEI = Dialect(422, "te_queue_size", "te_request_failure", {"err": "dropped"})


class Server:
    """A server under the contract."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.info: dict[str, Any] = self.get("/info").json()
        self.dialect = S2SENT if "fingerprint" in self.info else TEI

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def embed(self, inputs: Any, **options: Any) -> Rows:
        """The vectors [n, dim] of /embed, which must succeed."""
        response = self.post("/embed", {"inputs": inputs, **options})
        assert response.status_code == 200, response.text
        return np.array(response.json(), np.float32)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels; 0 where there are none."""
        return _value(self.get("/metrics").text, name, **labels)

    def waiting(self) -> float:
        """Texts that wait to be embedded."""
        return self.metric(self.dialect.waiting)

    def dropped(self) -> float:
        """Requests whose client left before their answer."""
        return self.metric(self.dialect.dropped, **self.dialect.dropped_label)


def _value(metrics: str, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(metrics)
    samples = [sample for family in families for sample in family.samples]
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


@pytest.fixture(scope="module")
def server(each_form: None) -> Iterator[Server]:
    """The server at CONTRACT_URL, or this service with its default model and small limits."""
    if FOREIGN_URL:
        with httpx.Client(base_url=FOREIGN_URL, trust_env=False, timeout=120) as client:
            yield Server(client)
        return
    flags = ("--no-log-requests", "--max-client-batch-size", "32", "--max-body-bytes", "2000000")
    with running_server(DEFAULT_ARTIFACT, *flags) as process:
        yield Server(process.client)


@pytest.fixture(scope="module")
def strict(each_form: None) -> Iterator[httpx.Client]:
    """A client of a server that has one key, and room for two requests."""
    flags = ("--api-keys", "right", "--max-concurrent-requests", "2", "--no-log-requests")
    with running_server(DEFAULT_ARTIFACT, *flags) as process:
        yield process.client


def norms(rows: Rows) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.linalg.norm(rows.astype(np.float64), axis=1)
    return lengths


def assert_error(response: httpx.Response, status: int, error_type: str) -> None:
    assert response.status_code == status, response.text
    assert response.json()["error_type"] == error_type
    assert isinstance(response.json()["error"], str)


def test_1_a_text_has_one_unit_vector_wherever_it_stands(server: Server) -> None:
    alone, among = server.embed(TEXTS[1]), server.embed(TEXTS)
    assert len(alone) == 1
    np.testing.assert_allclose(norms(among), 1, atol=1e-3)
    np.testing.assert_allclose(among[1], alone[0], atol=TOLERANCE)


def test_2_normalize_scales_and_dimensions_cuts_before_it(server: Server) -> None:
    unit, raw = server.embed(TEXTS), server.embed(TEXTS, normalize=False)
    np.testing.assert_allclose(raw / norms(raw)[:, None], unit, atol=TOLERANCE)
    assert not np.allclose(norms(raw), 1, atol=1e-3)  # unless the model ends in a normalisation
    head = raw[:, :5]
    cut = server.embed(TEXTS, dimensions=5)
    np.testing.assert_allclose(cut, head / norms(head)[:, None], atol=TOLERANCE)
    raw_cut = server.embed(TEXTS, dimensions=5, normalize=False)
    np.testing.assert_allclose(raw_cut, head, atol=TOLERANCE * norms(raw).max())


def test_3_dimensions_outside_the_models_are_refused(server: Server) -> None:
    dim = server.embed("a").shape[1]
    for dimensions in (0, dim + 1):
        body = {"inputs": "a", "dimensions": dimensions}
        assert_error(server.post("/embed", body), 422, "Validation")
    assert server.embed("a", dimensions=dim).shape[1] == dim


@pytest.mark.parametrize("inputs", ["", [], ["a", ""]])
def test_4_nothing_to_embed_is_400(server: Server, inputs: Any) -> None:
    assert_error(server.post("/embed", {"inputs": inputs}), 400, "Empty")


def test_5_a_request_takes_as_many_texts_as_info_says(server: Server) -> None:
    limit = server.info["max_client_batch_size"]
    texts = [f"Sentence number {number}." for number in range(limit + 1)]
    refused = server.post("/embed", {"inputs": texts})
    assert refused.status_code == server.dialect.too_many
    assert str(limit) in refused.json()["error"]
    assert str(limit + 1) in refused.json()["error"]
    rows = server.embed(texts[:limit])
    assert len(rows) == limit
    for index in (0, limit // 2, limit - 1):
        np.testing.assert_allclose(rows[index], server.embed(texts[index])[0], atol=TOLERANCE)


def test_6_bodies_that_cannot_be_read_have_their_own_status(server: Server) -> None:
    """TEI answers these with plain text, so only the status is the contract."""
    json = {"Content-Type": "application/json"}
    too_large = server.post("/embed", {"inputs": "a" * 10_000_000})  # bytes, above both limits
    assert too_large.status_code == 413
    form = server.client.post("/embed", content=b'{"inputs":"a"}', headers={"Content-Type": "a/b"})
    assert form.status_code == 415
    assert server.client.post("/embed", content=b'{"inputs":', headers=json).status_code == 400
    for wrong in ({}, {"inputs": {"a": 1}}, {"inputs": "a", "normalize": "yes"}):
        assert server.post("/embed", wrong).status_code == 422


def test_7_a_long_text_is_cut_on_the_side_that_was_asked_for_or_refused(server: Server) -> None:
    limit = server.info["max_input_length"]
    long = "guitar " * limit + "music " * limit
    cut = server.post("/embed", {"inputs": long})
    assert cut.status_code == 200
    assert int(cut.headers["x-compute-tokens"]) == limit
    assert_error(server.post("/embed", {"inputs": long, "truncate": False}), 422, "Validation")
    right, left = (server.embed(long, truncation_direction=side) for side in ("right", "left"))
    np.testing.assert_allclose(right, cut.json(), atol=TOLERANCE)
    assert np.abs(right - left).max() > 0.01


def test_8_an_unknown_prompt_is_refused(server: Server) -> None:
    body = {"inputs": "a", "prompt_name": "no such prompt"}
    assert_error(server.post("/embed", body), 422, "Validation")


def test_9_the_ids_of_a_text_have_its_vector(server: Server) -> None:
    """TEI decodes ids and encodes them again, so there it holds for texts that survive this."""
    tokens = server.post("/tokenize", {"inputs": TEXTS}).json()
    ids = [[token["id"] for token in text] for text in tokens]
    np.testing.assert_allclose(server.embed(ids), server.embed(TEXTS), atol=TOLERANCE)
    np.testing.assert_allclose(server.embed(ids[0]), server.embed(TEXTS[0]), atol=TOLERANCE)
    for text, own in zip(TEXTS, tokens, strict=True):
        assert {"id", "text", "special", "start", "stop"} == set(own[0])
        assert own[0]["special"]
        assert own[0]["start"] is None
        plain = [token for token in own if not token["special"]]
        assert all(text[token["start"] : token["stop"]] == token["text"] for token in plain)
    assert server.post("/decode", {"ids": ids}).status_code == 200
    assert len(server.post("/decode", {"ids": ids}).json()) == len(TEXTS)


def test_10_similarity_is_the_cosine_and_the_source_counts_as_a_text(server: Server) -> None:
    source, *others = server.embed(TEXTS)
    inputs: dict[str, Any] = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    response = server.post("/similarity", {"inputs": inputs, "parameters": {}})
    np.testing.assert_allclose(response.json(), others @ source, atol=max(1e-4, TOLERANCE))
    limit = server.info["max_client_batch_size"]
    sentences = [f"Sentence number {number}." for number in range(limit)]
    for count, status in ((limit - 1, 200), (limit, server.dialect.too_many)):
        body = {"inputs": {"source_sentence": "A source.", "sentences": sentences[:count]}}
        assert server.post("/similarity", body).status_code == status


def test_11_openais_route_has_the_same_numbers_in_both_encodings(server: Server) -> None:
    body = {"input": TEXTS, "model": "a model nobody has"}
    floats = server.post("/v1/embeddings", body).json()
    packed = server.post("/v1/embeddings", body | {"encoding_format": "base64"}).json()
    rows = np.array([item["embedding"] for item in floats["data"]], np.float32)
    decoded = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in packed["data"]]
    # Two runs of the model: the same to the last bit only where batches are put together alike.
    np.testing.assert_allclose(rows, decoded, atol=TOLERANCE)
    np.testing.assert_allclose(rows, server.embed(TEXTS), atol=TOLERANCE)
    tokens = int(server.post("/embed", {"inputs": TEXTS}).headers["x-compute-tokens"])
    assert floats["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert [item["index"] for item in floats["data"]] == [0, 1, 2]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": TEXTS}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": TEXTS}}),
        ("/v1/embeddings", {"input": TEXTS}),
    ],
)
def test_12_success_says_what_it_took(server: Server, path: str, body: Any) -> None:
    headers = server.post(path, body).headers
    assert set(HEADERS) <= set(headers)
    assert headers["x-compute-type"]
    total = int(headers["x-total-time"])
    for part in ("x-compute-time", "x-tokenization-time", "x-queue-time", "x-inference-time"):
        assert 0 <= int(headers[part]) <= total + 1  # each is rounded by itself
    assert int(headers["x-compute-characters"]) >= sum(map(len, TEXTS))


def test_13_info_has_its_keys_and_types(server: Server) -> None:
    """More keys may follow."""
    kinds: dict[str, type | tuple[type, ...]] = {
        **dict.fromkeys(("model_id", "model_dtype", "served_model_name", "version"), str),
        **dict.fromkeys(("model_sha", "sha", "docker_label"), (str, type(None))),
        **dict.fromkeys(("max_concurrent_requests", "max_input_length", "max_batch_tokens"), int),
        **dict.fromkeys(("max_client_batch_size", "tokenization_workers"), int),
        "max_batch_requests": (int, type(None)),
        "auto_truncate": bool,
        "model_type": dict,
    }
    for key, kind in kinds.items():
        assert isinstance(server.info[key], kind), key
    assert isinstance(server.info["model_type"]["embedding"]["pooling"], str)


@OWN_SETTINGS
def test_14_a_wrong_key_opens_neither_work_nor_info(strict: httpx.Client) -> None:
    for key, status in (("", 401), ("Bearer wrong", 401), (RIGHT, 200)):
        headers = {"Authorization": key} if key else {}
        assert strict.get("/info", headers=headers).status_code == status
        embedded = strict.post("/embed", json={"inputs": "a"}, headers=headers)
        assert embedded.status_code == status
    assert strict.get("/health").status_code == 200
    assert strict.get("/metrics").status_code == 200


@OWN_SETTINGS
def test_15_a_flood_is_answered_with_200_and_429_alone(strict: httpx.Client) -> None:
    """Sixteen connections where two requests have room, and a healthy service afterwards."""
    headers = {"Authorization": RIGHT}
    with httpx.Client(base_url=strict.base_url, **LOCAL, headers=headers, timeout=60) as client:
        server = Server(client)
        known = server.embed(TEXTS)

        def ask(_: int) -> int:
            response = client.post("/embed", json={"inputs": TEXTS * 10})
            if response.status_code == 429:
                assert int(response.headers["retry-after"]) >= 1  # TEI sends none
            return response.status_code

        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(ask, range(200)))
        assert set(answers) == {200, 429}
        assert client.get("/health").status_code == 200
        np.testing.assert_allclose(server.embed(TEXTS), known, atol=TOLERANCE)


def test_16_a_client_that_leaves_is_counted_and_forgotten(server: Server) -> None:
    """Some requests are being worked on while more wait, and those are given up."""
    before = settled(server.dropped)
    known = server.embed(TEXTS)
    address = server.client.base_url
    long = "music " * server.info["max_input_length"]
    body = httpx.Request("POST", "/embed", json={"inputs": [long] * 32}).content
    head = (
        f"POST /embed HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    leaving: list[socket.socket] = []
    while server.waiting() <= 32:  # more than one request has; as of up to a second ago
        leaving.append(socket.create_connection((address.host, address.port)))
        leaving[-1].sendall(head + body)
    for connection in leaving:
        connection.close()
    while server.dropped() == before:
        time.sleep(0.05)
    np.testing.assert_allclose(server.embed(TEXTS), known, atol=TOLERANCE)


def test_17_every_request_is_counted_once_as_success_or_failure(server: Server) -> None:
    """TEI fails this on a single /predict, which is no route of an embedding model."""
    pair = {"source_sentence": "a", "sentences": ["b"]}
    script: list[tuple[str, dict[str, Any], int]] = [
        ("/embed", {"inputs": "a"}, 5),
        ("/embed", {"inputs": ""}, 3),
        ("/similarity", {"inputs": pair}, 2),
    ]
    before = settled(lambda: _outcomes(server))
    for path, body, times in script:
        for _ in range(times):
            server.post(path, body)
    after = settled(lambda: _outcomes(server))
    assert (after[0] - before[0], after[1] - before[1]) == (7, 3)


def _outcomes(server: Server) -> tuple[float, float]:
    """Requests that succeeded and that failed; their sum is what the server counted in all."""
    if server.dialect is TEI:
        good, all_ = server.metric("te_request_success"), server.metric("te_request_count")
        return good, all_ - good
    routes = ("/embed", "/similarity")
    count = "s2sent_requests_total"
    good = sum(server.metric(count, route=route, status="200") for route in routes)
    return good, sum(server.metric(count, route=route) for route in routes) - good


@OWN_SETTINGS
def test_18_sigterm_lets_what_was_accepted_finish() -> None:
    """Every request is answered: 200, or 503 when its body was read after the signal.

    The process ends with 0 only when all it had accepted was done.
    """
    flags = ("--threads", "1", "--request-timeout-seconds", "300", "--no-log-requests")
    with running_server(DEFAULT_ARTIFACT, *flags, "--drain-timeout-seconds", "300") as process:
        server = Server(process.client)
        # Some seconds' work, of which a second may pass before it is seen; equal texts run once.
        texts = [f"{number} " + "music " * 100 for number in range(64)]

        def ask(_: int) -> int:
            with httpx.Client(base_url=process.url, trust_env=False, timeout=600) as client:
                response = client.post("/embed", json={"inputs": texts})
            assert response.status_code == 200 or int(response.headers["retry-after"]) >= 1
            return response.status_code

        with ThreadPoolExecutor(REQUESTS_AT_STOP) as pool:
            asking = [pool.submit(ask, number) for number in range(REQUESTS_AT_STOP)]
            while _begun(server) < REQUESTS_AT_STOP:
                assert not all(one.done() for one in asking)
                time.sleep(0.05)
            left = [one for one in asking if not one.done()]
            assert process.stop() == 0
            assert {one.result() for one in asking} <= {200, 503}
        assert [one for one in left if one.result() == 200]


def _begun(server: Server) -> float:
    """Requests of /embed that the server has begun, answered or not, up to a second ago."""
    metrics = server.get("/metrics").text
    in_flight = _value(metrics, "s2sent_requests_in_flight") - 1  # this very question
    return in_flight + _value(metrics, "s2sent_requests_total", route="/embed")
