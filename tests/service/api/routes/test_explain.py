"""/explain: what the served graph says of its texts, and what it answers where it cannot."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.fake_engine import MAX_TOKENS, FakeEngine, client_of, engine_of_blocks
from tests.support.fake_model import serving
from tests.support.server_process import ServerProcess, running_server

TEXTS = ["the cat sings", "two happy dogs read books in the green city"]
LONG = "the dog eats " * 40


@pytest.fixture(scope="module")
def server(exits_artifact: Artifact) -> Iterator[ServerProcess]:
    with running_server(exits_artifact.path, "--no-log-requests") as server:
        yield server


def explained(server: ServerProcess, **body: Any) -> list[dict[str, Any]]:
    answer = server.client.post("/explain", json=body)
    assert answer.status_code == 200, answer.text
    texts: list[dict[str, Any]] = answer.json()["texts"]
    return texts


@pytest.mark.parametrize("depth", [None, 2])
def test_the_weights_are_those_of_the_encoder(
    server: ServerProcess, exits_artifact: Artifact, depth: int | None
) -> None:
    """Of every feature, with their mean, least and largest, by the number of the block."""
    encoder = OnnxEncoder(exits_artifact)
    sequences = [row.input_ids for row in encoder.tokenizer.tokenize(TEXTS)]
    expected = encoder.block_weights(sequences, depth=depth)
    for text, weights in zip(
        explained(server, inputs=TEXTS, depth=depth, features=True), expected, strict=True
    ):
        blocks = text["blocks"]
        assert [one["block"] for one in blocks] == ([4, 5, 6] if depth is None else [1, 2])
        given = np.array([one["features"] for one in blocks])
        np.testing.assert_allclose(given, weights, atol=1e-6)
        for name, of in (("mean", np.mean), ("min", np.min), ("max", np.max)):
            values = [one[name] for one in blocks]
            np.testing.assert_allclose(values, of(weights, axis=1), atol=1e-6)


def test_features_are_given_only_where_they_are_asked_for(server: ServerProcess) -> None:
    (text,) = explained(server, inputs=TEXTS[0])
    assert [set(block) for block in text["blocks"]] == [{"block", "mean", "min", "max"}] * 3


@pytest.mark.parametrize(
    ("direction", "first"), [("right", ["the", "dog", "eats"]), ("left", ["dog", "eats", "the"])]
)
def test_the_tokens_are_those_that_were_embedded(
    server: ServerProcess, direction: str, first: list[str]
) -> None:
    """A text that is cut has the tokens that are left of it."""
    short, long = explained(server, inputs=["a cat", LONG], truncation_direction=direction)
    assert (short["tokens"], short["truncated"]) == (["[CLS]", "a", "cat", "[SEP]"], False)
    assert (long["tokens"][1:4], long["truncated"]) == (first, True)
    assert len(long["tokens"]) == 64


def test_the_answer_has_the_headers_of_an_embedding(server: ServerProcess) -> None:
    """Of the same vectors as /embed at that depth."""
    embedded, answer = (
        server.client.post(path, json={"inputs": TEXTS, "depth": 4})
        for path in ("/embed", "/explain")
    )
    for name in ("x-model-fingerprint", "x-compute-tokens", "x-truncated"):
        assert answer.headers[name] == embedded.headers[name]
    assert answer.json()["model_fingerprint"] == answer.headers["x-model-fingerprint"]


@pytest.mark.parametrize(
    ("selector", "cure"),
    [
        ({"num_blocks": 2}, "Export its checkpoint again with s2sent-train export."),
        (None, "It has no selector: serve a model that was trained with one."),
    ],
)
async def test_a_model_that_gives_no_weights_is_422_with_the_cure(
    selector: dict[str, Any] | None, cure: str
) -> None:
    engine = FakeEngine(has_block_weights=False)
    manifest = replace(engine.artifact.manifest, selector=selector)
    engine.artifact = replace(engine.artifact, manifest=manifest)
    response = await client_of(engine).post("/explain", json={"inputs": "a"})
    assert response.status_code == 422
    assert response.json()["error"] == f"The graph of tiny-s2sent gives no block weights. {cure}"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"inputs": ""}, 400),
        ({"inputs": ["a", ""]}, 400),
        ({"inputs": "a", "features": "yes"}, 422),
        ({"inputs": "a", "depth": 1}, 422),
        ({"inputs": "a " * (2 * MAX_TOKENS), "prompt_name": "nope"}, 422),
        ({"inputs": ["a"] * 2049}, 413),
    ],
)
async def test_bad_requests_have_the_native_envelope(body: dict[str, Any], status: int) -> None:
    response = await client_of(engine_of_blocks()).post("/explain", json=body)
    assert response.status_code == status
    assert set(response.json()) == {"error", "error_type"}


async def test_texts_to_explain_and_to_embed_never_share_a_run() -> None:
    """Each gets its own rows, also where a cache keeps embeddings."""
    async with serving(cache_bytes=100_000) as harness:
        held = await harness.hold()
        tasks = [harness.send("a", "bc"), harness.send("a", "bc", weights=True)]
        await harness.queued(4)
        harness.encoder.gate.set()
        embedded, weighed = await asyncio.gather(*tasks)
        np.testing.assert_array_equal(weighed.embeddings, embedded.embeddings + 1)
        assert [list(map(chr, ids)) for ids in weighed.token_ids] == [["a"], ["b", "c"]]
        again = await harness.send("a", "bc")
        np.testing.assert_array_equal(again.embeddings, embedded.embeddings)
        await held
