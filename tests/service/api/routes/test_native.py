"""/embed and /similarity, as text-embeddings-inference's clients use them."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from s2sent.model.artifact.reader import Artifact
from s2sent.service.errors import InferenceFailed
from tests.support.fake_engine import DIM, FakeEngine, client_of, vector_of


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize(
    ("inputs", "texts"),
    [
        ("one text", ["one text"]),
        (["a", "b"], ["a", "b"]),
        ([7, 8, 9], [[7, 8, 9]]),
        ([[7, 8], [9]], [[7, 8], [9]]),
        (["a", [7, 8]], ["a", [7, 8]]),
    ],
)
@pytest.mark.parametrize("path", ["/embed", "/"])
async def test_every_form_of_inputs_answers_a_list_of_unit_vectors_in_order(
    path: str, inputs: Any, texts: list[Any]
) -> None:
    engine = FakeEngine()
    response = await client_of(engine).post(path, json={"inputs": inputs})
    assert response.status_code == 200
    assert engine.calls[0].texts == texts
    expected = [unit(vector_of(text)) for text in texts]
    np.testing.assert_allclose(response.json(), expected, atol=1e-6)  # float32 in decimal


async def test_dimensions_are_cut_before_normalising() -> None:
    client = client_of(FakeEngine())
    response = await client.post("/embed", json={"inputs": "a", "dimensions": 3})
    np.testing.assert_allclose(response.json(), [unit(vector_of("a")[:3])], atol=1e-6)


async def test_cut_components_cost_no_second_run_and_are_not_sent() -> None:
    engine = FakeEngine()
    body, headers = {"inputs": ["a", "b"], "dimensions": 3}, {"Accept": "application/octet-stream"}
    raw = await client_of(engine).post("/embed", json=body, headers=headers)
    assert len(raw.content) == 2 * 3 * 4
    assert len(engine.calls) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": "a", "depth": 2}),
        ("/v1/embeddings", {"input": "a", "depth": 2}),
        ("/similarity", {"inputs": {"pairs": [["a", "b"]]}, "parameters": {"depth": 2}}),
    ],
)
async def test_depth_reaches_the_engine_and_null_is_full_depth(
    path: str, body: dict[str, Any]
) -> None:
    engine = FakeEngine()
    client = client_of(engine)
    assert (await client.post(path, json=body)).status_code == 200
    null = {"parameters": {"depth": None}} if "parameters" in body else {"depth": None}
    assert (await client.post(path, json=body | null)).status_code == 200
    assert [call.depth for call in engine.calls] == [2, None]


@pytest.mark.parametrize(("depths", "known"), [((2, 4), "2, 4"), ((), "none")])
async def test_a_depth_the_model_lacks_is_refused_with_those_it_has(
    depths: tuple[int, ...], known: str
) -> None:
    engine = FakeEngine()
    engine.artifact = Artifact(
        engine.artifact.path, dataclasses.replace(engine.artifact.manifest, depths=depths)
    )
    response = await client_of(engine).post("/embed", json={"inputs": "a", "depth": 3})
    assert response.status_code == 422
    message = f"depth is 3; this model can stop at {known}. Leave it out for full depth."
    assert response.json()["error"] == message
    assert engine.calls == []


async def test_normalize_false_gives_the_engines_own_numbers() -> None:
    client = client_of(FakeEngine())
    response = await client.post("/embed", json={"inputs": "a", "normalize": False})
    assert np.array_equal(np.array(response.json(), np.float32), [vector_of("a")])


async def test_octets_are_the_same_numbers_as_json() -> None:
    client = client_of(FakeEngine())
    as_json = await client.post("/embed", json={"inputs": ["a", "b"]})
    headers = {"Accept": "application/octet-stream"}
    raw = await client.post("/embed", json={"inputs": ["a", "b"]}, headers=headers)
    assert raw.headers["content-type"] == "application/octet-stream"
    assert raw.headers["x-embedding-shape"] == f"2,{DIM}"
    rows = np.frombuffer(raw.content, "<f4").reshape(2, DIM)
    assert np.array_equal(rows, np.array(as_json.json(), np.float32))


async def test_options_reach_the_engine() -> None:
    engine = FakeEngine()
    options = {"truncate": False, "truncation_direction": "Left", "prompt_name": "query"}
    await client_of(engine).post("/embed", json={"inputs": "a", **options})
    call = engine.calls[0]
    assert (call.truncate, call.truncation_direction, call.prompt) == (False, "left", "query: ")
    assert call.timeout_seconds is not None
    assert 0 < call.timeout_seconds <= 60


@pytest.mark.parametrize("auto_truncate", [True, False])
async def test_the_server_decides_on_truncation_when_the_request_does_not(
    auto_truncate: bool,
) -> None:
    engine = FakeEngine()
    await client_of(engine, auto_truncate=auto_truncate).post("/embed", json={"inputs": "a"})
    assert engine.calls[0].truncate is auto_truncate


@pytest.mark.parametrize(
    ("inputs", "characters"),
    [
        ({"source_sentence": "ab", "sentences": ["ab", "ab", "c"]}, 7),
        ({"pairs": [["ab", "ab"], ["c", "ab"]]}, 7),
        ({"queries": ["ab", "c"], "documents": ["ab", "ab"]}, 7),
    ],
)
@pytest.mark.parametrize("parameters", [{}, {"documents_prompt_name": "query"}])
async def test_every_character_of_a_comparison_counts(
    inputs: dict[str, Any], characters: int, parameters: dict[str, Any]
) -> None:
    """Also of a text that is embedded once for several places."""
    body = {"inputs": inputs, "parameters": parameters}
    answer = await client_of(FakeEngine()).post("/similarity", json=body)
    assert answer.headers["x-compute-characters"] == str(characters)


async def test_success_tells_what_it_took() -> None:
    client = client_of(FakeEngine())
    headers = (await client.post("/embed", json={"inputs": ["two words", [1, 2]]})).headers
    assert headers["x-compute-type"] == "cpu"
    assert headers["x-compute-characters"] == "11"
    assert headers["x-compute-tokens"] == "6"
    times = ["x-tokenization-time", "x-queue-time", "x-inference-time"]
    assert [headers[name] for name in times] == ["2", "3", "4"]
    assert int(headers["x-total-time"]) >= int(headers["x-compute-time"]) >= 0


async def test_compute_type_says_gpu_only_on_a_gpu() -> None:
    client = client_of(FakeEngine(provider="CUDAExecutionProvider"))
    response = await client.post("/embed", json={"inputs": "a"})
    assert response.headers["x-compute-type"] == "gpu"


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("normalize", [True, False])
async def test_a_vector_without_direction_is_an_error_not_a_null(
    value: float, normalize: bool
) -> None:
    rows = np.ones((2, DIM), np.float32)
    rows[1] = value
    client = client_of(FakeEngine(vectors=rows))
    body = {"inputs": ["a", "b"], "normalize": normalize}
    response = await client.post("/embed", json=body)
    assert response.status_code == 424
    assert response.json()["error_type"] == "Backend"
    assert "input 1" in response.json()["error"]


async def test_a_long_answer_keeps_every_row_in_order() -> None:
    texts = [f"text {number}" for number in range(200)]  # more than three slices
    response = await client_of(FakeEngine()).post("/embed", json={"inputs": texts})
    expected = [unit(vector_of(text)) for text in texts]
    np.testing.assert_allclose(response.json(), expected, atol=1e-6)


async def test_similarity_of_a_source_is_one_cosine_per_sentence() -> None:
    engine = FakeEngine()
    inputs = {"source_sentence": "a", "sentences": ["b", "a", "b"]}
    body = {"inputs": inputs, "parameters": {"prompt_name": "query", "truncate": None}}
    response = await client_of(engine).post("/similarity", json=body)
    cosine = float(unit(vector_of("a")) @ unit(vector_of("b")))
    np.testing.assert_allclose(response.json(), [cosine, 1, cosine], atol=1e-6)
    assert response.json()[0] == response.json()[2]
    assert max(response.json()) <= 1
    assert engine.calls[0].texts == ["b", "a"]  # a text that comes twice is embedded once
    assert engine.calls[0].prompt == "query: "
    assert response.headers["x-compute-tokens"] == "6"


async def test_similarity_of_pairs_is_one_cosine_per_pair() -> None:
    pairs = [["a", "b"], ["b", "a"], ["c", "c"]]
    response = await client_of(FakeEngine()).post("/similarity", json={"inputs": {"pairs": pairs}})
    first, second, third = response.json()
    assert first == second == pytest.approx(unit(vector_of("a")) @ unit(vector_of("b")), abs=1e-6)
    assert third == pytest.approx(1, abs=1e-6)


async def test_ranking_is_descending_with_ties_in_order() -> None:
    inputs = {"queries": ["a", "b"], "documents": ["b", "a", "b", "c"]}
    response = await client_of(FakeEngine()).post("/similarity", json={"inputs": inputs})
    to_a, to_b = response.json()
    assert [found["index"] for found in to_b[:2]] == [0, 2]
    assert to_b[0]["score"] == to_b[1]["score"] == pytest.approx(1, abs=1e-6)
    for ranking in (to_a, to_b):
        scores = [found["score"] for found in ranking]
        assert scores == sorted(scores, reverse=True)
        assert sorted(found["index"] for found in ranking) == [0, 1, 2, 3]


async def test_rankings_together_have_a_limit() -> None:
    """64 queries with 1,024 documents each are allowed, and more with a top_k."""
    queries, documents = ["q"] * 65, ["d"] * 1024
    inputs = {"queries": queries, "documents": documents}
    client = client_of(FakeEngine())
    refused = await client.post("/similarity", json={"inputs": inputs})
    assert refused.status_code == 413
    assert (
        "65 queries with 1024 documents each are 66560 scores; the limit is 65536"
        in (refused.json()["error"])
    )
    for accepted in ({"queries": queries[1:]}, {"top_k": 1008}):
        response = await client.post("/similarity", json={"inputs": inputs | accepted})
        assert response.status_code == 200


@pytest.mark.parametrize(
    ("accept", "raw"),
    [
        (["application/octet-stream"], True),
        (["Application/Octet-Stream;q=0.5", "application/json;q=0.1"], True),
        (["application/json, application/octet-stream"], True),
        (["*/*", "text/html,application/octet-stream"], True),
        (["application/octet-stream, application/*;q=0.1, */*"], True),
        (["application/octet-stream;q=0.1, */*"], False),
        (["application/octet-stream;q=0.1, application/*;q=0.2, */*;q=0"], False),
        (["application/octet-stream;q=0"], False),
        (["application/json", "application/octet-stream; q=0.9"], False),
        (["application/octet-stream-2"], False),
        (["*/*"], False),
    ],
)
async def test_accept_is_read_by_its_weights(accept: list[str], raw: bool) -> None:
    headers = [("Accept", line) for line in accept]
    response = await client_of(FakeEngine()).post("/embed", json={"inputs": "a"}, headers=headers)
    expected = "application/octet-stream" if raw else "application/json"
    assert response.headers["content-type"] == expected


@pytest.mark.parametrize(("top_k", "count"), [(1, 1), (2, 2), (99, 3), (None, 3)])
async def test_top_k_limits_each_ranking(top_k: int | None, count: int) -> None:
    inputs = {"queries": ["q"], "documents": ["a", "b", "c"], "top_k": top_k}
    response = await client_of(FakeEngine()).post("/similarity", json={"inputs": inputs})
    assert len(response.json()[0]) == count


async def test_similarity_of_a_vector_without_direction_is_an_error() -> None:
    client = client_of(FakeEngine(vectors=np.zeros((2, DIM), np.float32)))
    inputs = {"source_sentence": "a", "sentences": ["b"]}
    response = await client.post("/similarity", json={"inputs": inputs})
    assert response.status_code == InferenceFailed.status
