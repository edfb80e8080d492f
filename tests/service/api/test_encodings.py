"""Embeddings in smaller numbers are those of the float answer, rounded as documented."""

import base64
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from s2sent.service.api.encodings import Encoding, encode
from s2sent.service.encodings import INT8_RANGE, int8_scale
from s2sent.service.errors import InvalidInput
from tests.support.fake_engine import DIM, FakeEngine, client_of

TYPES = {
    "float": "<f4", "base64": "<f4", "float16": "<f2", "int8": "i1", "binary": "i1", "ubinary": "u1"
}  # fmt: skip
TEXTS = ["a", "b", "c"]
ENCODINGS = get_args(Encoding)


def decoded(item: Any, encoding: str) -> NDArray[np.generic]:
    if isinstance(item, str):
        return np.frombuffer(base64.b64decode(item), TYPES[encoding])
    return np.array(item).astype(TYPES[encoding])


@pytest.mark.parametrize("dimensions", [None, 5])
@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_both_routes_and_raw_numbers_agree(encoding: str, dimensions: int | None) -> None:
    client = client_of(FakeEngine())
    options = {"dimensions": dimensions}
    body = {"inputs": TEXTS, "encoding": encoding, **options}
    native = await client.post("/embed", json=body)
    raw = await client.post("/embed", json=body, headers={"Accept": "application/octet-stream"})
    openai = await client.post(
        "/v1/embeddings", json={"input": TEXTS, "encoding_format": encoding, **options}
    )
    rows = np.stack([decoded(item, encoding) for item in native.json()])
    data = [decoded(item["embedding"], encoding) for item in openai.json()["data"]]
    assert np.array_equal(rows, np.stack(data))
    assert rows.tobytes() == raw.content
    assert raw.headers["x-embedding-shape"] == f"{rows.shape[0]},{rows.shape[1]}"
    for response in (native, raw, openai):
        assert ("x-embedding-scale" in response.headers) == (encoding == "int8")


async def test_int8_times_the_scale_is_the_embedding() -> None:
    client = client_of(FakeEngine())
    exact = np.array((await client.post("/embed", json={"inputs": TEXTS})).json())
    answer = await client.post("/embed", json={"inputs": TEXTS, "encoding": "int8"})
    scale = float(answer.headers["x-embedding-scale"])
    assert scale == pytest.approx(8 / (127 * np.sqrt(DIM)))
    np.testing.assert_allclose(np.array(answer.json()) * scale, exact, atol=0.501 * scale)


@pytest.mark.parametrize("encoding", ["binary", "ubinary"])
async def test_bits_are_the_signs_and_the_last_byte_is_filled_with_zeros(encoding: str) -> None:
    client = client_of(FakeEngine())
    exact = np.array((await client.post("/embed", json={"inputs": TEXTS, "dimensions": 5})).json())
    body = {"inputs": TEXTS, "encoding": encoding, "dimensions": 5}
    rows = np.array((await client.post("/embed", json=body)).json())
    unsigned = (rows + 128 if encoding == "binary" else rows).astype(np.uint8)
    bits = np.unpackbits(unsigned, axis=1)
    assert np.array_equal(bits[:, :5], exact > 0)
    assert not bits[:, 5:].any()


@given(rows=arrays(np.float32, (3, 16), elements=st.floats(-1, 1, width=32)))
def test_int8_stays_within_half_a_step_or_is_clipped(rows: NDArray[np.float32]) -> None:
    scale = int8_scale(16)
    encoded = encode(rows, "int8")
    assert encoded.dtype == np.int8
    assert np.abs(encoded.astype(int)).max() <= 127
    assert np.all(np.abs(encoded.astype(float) * scale - rows) <= 0.501 * scale)
    assert INT8_RANGE / np.sqrt(16) >= 1  # so that nothing here is clipped


def test_what_is_beyond_the_range_is_clipped_and_not_wrapped_round() -> None:
    rows = np.zeros((1, 1024), np.float32)
    rows[0, :2] = 1, -1
    assert encode(rows, "int8")[0, :3].tolist() == [127, -127, 0]
    halves = encode(np.array([[1e30, -1e30]], np.float32), "float16")
    assert np.isfinite(halves.astype(np.float32)).all()


async def test_int8_of_embeddings_of_any_length_is_refused() -> None:
    body = {"inputs": "a", "encoding": "int8", "normalize": False}
    response = await client_of(FakeEngine()).post("/embed", json=body)
    assert response.status_code == 422
    assert "Leave normalize out, or ask for float16." in response.json()["error"]


@pytest.mark.parametrize("encoding", ENCODINGS)
async def test_every_encoding_can_have_nulls_beside_it(encoding: str) -> None:
    client = client_of(FakeEngine(errors={1: InvalidInput("Input 1 is too long.")}))
    body = {"inputs": TEXTS, "on_error": "null", "encoding": encoding, "details": True}
    answer = (await client.post("/embed", json=body)).json()
    assert [row is None for row in answer["embeddings"]] == [False, True, False]


@pytest.mark.parametrize(
    ("path", "field"), [("/embed", "encoding"), ("/v1/embeddings", "encoding_format")]
)
async def test_another_encoding_is_refused_with_those_there_are(path: str, field: str) -> None:
    body = {"inputs": "a", "input": "a", field: "int4"}
    response = await client_of(FakeEngine()).post(path, json=body)
    assert response.status_code == (422 if path == "/embed" else 400)
    assert "'int8', 'binary' or 'ubinary'" in response.text


async def test_prompt_name_on_the_openai_route_reaches_the_engine() -> None:
    engine = FakeEngine()
    client = client_of(engine)
    await client.post("/v1/embeddings", json={"input": "a", "prompt_name": "query"})
    assert engine.calls[0].prompt == "query: "
    unknown = await client.post("/v1/embeddings", json={"input": "a", "prompt_name": "other"})
    assert unknown.status_code == 400
    assert unknown.json()["error"]["param"] == "prompt_name"
