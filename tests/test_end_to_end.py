"""From a training run to vectors over HTTP: the whole path with its real parts."""

import base64
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from s2sent.model.artifact.manifest import MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.export.parity import parity_sentences
from s2sent.model.network.encoder import load_encoder
from tests.support.server_process import ServerProcess, running_server

TEXTS = list(parity_sentences())
Rows = NDArray[np.float32]


@pytest.fixture(scope="module")
def server(each_form: None, tiny_artifact: Artifact) -> Iterator[ServerProcess]:
    with running_server(tiny_artifact.path, "--no-log-requests") as server:
        yield server


@pytest.fixture(scope="module")
def by_torch(tiny_checkpoint: Path) -> Rows:
    encoder = load_encoder(tiny_checkpoint)
    return np.asarray(encoder.encode(TEXTS, normalize_embeddings=True, convert_to_numpy=True))


def embed(server: ServerProcess, texts: list[str]) -> Rows:
    response = server.client.post("/embed", json={"inputs": texts})
    assert response.status_code == 200, response.text
    return np.array(response.json(), dtype=np.float32)


@pytest.mark.parametrize("texts_per_request", [1, 7, len(TEXTS)])
def test_every_batch_size_gives_torchs_vectors(
    server: ServerProcess, by_torch: Rows, texts_per_request: int
) -> None:
    """One at a time, by sevens, or all at once: within 1e-5 of torch."""
    starts = range(0, len(TEXTS), texts_per_request)
    rows = [embed(server, TEXTS[start : start + texts_per_request]) for start in starts]
    np.testing.assert_allclose(np.concatenate(rows), by_torch, atol=1e-5)


def test_shuffled_texts_give_shuffled_vectors(server: ServerProcess, by_torch: Rows) -> None:
    """Neighbours and order do not matter."""
    order = list(range(len(TEXTS)))
    random.Random(1).shuffle(order)
    rows = embed(server, [TEXTS[index] for index in order])
    np.testing.assert_allclose(rows, by_torch[order], atol=1e-5)


def test_similarity_is_the_cosine_of_torchs_vectors(server: ServerProcess, by_torch: Rows) -> None:
    """In all three forms."""
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:5]}
    scores = server.client.post("/similarity", json={"inputs": inputs}).json()
    np.testing.assert_allclose(scores, by_torch[1:5] @ by_torch[0], atol=1e-5)
    pairs = server.client.post("/similarity", json={"inputs": {"pairs": [[TEXTS[2], TEXTS[3]]]}})
    np.testing.assert_allclose(pairs.json(), [by_torch[2] @ by_torch[3]], atol=1e-5)
    ranking = {"queries": [TEXTS[7]], "documents": TEXTS, "top_k": 2}
    best = server.client.post("/similarity", json={"inputs": ranking}).json()[0]
    assert best[0]["index"] == 7
    assert best[0]["score"] == pytest.approx(1, abs=1e-6)
    assert best[1]["score"] == pytest.approx(np.sort(by_torch @ by_torch[7])[-2], abs=1e-5)


def test_openai_route_gives_the_same_numbers_in_both_encodings(
    server: ServerProcess, by_torch: Rows
) -> None:
    """base64 is little-endian float32; usage counts every token once."""
    body = {"input": TEXTS[:3], "model": "any"}
    floats = server.client.post("/v1/embeddings", json=body).json()
    packed = server.client.post("/v1/embeddings", json=body | {"encoding_format": "base64"}).json()
    for index, (number, text) in enumerate(zip(floats["data"], packed["data"], strict=True)):
        decoded = np.frombuffer(base64.b64decode(text["embedding"]), dtype="<f4")
        np.testing.assert_array_equal(np.float32(number["embedding"]), decoded)
        np.testing.assert_allclose(decoded, by_torch[index], atol=1e-5)
    answer = server.client.post("/embed", json={"inputs": TEXTS[:3]})
    assert floats["usage"]["prompt_tokens"] == int(answer.headers["x-compute-tokens"])


def test_raw_octets_are_the_json_numbers(server: ServerProcess) -> None:
    """The compact form loses nothing."""
    request = {"inputs": TEXTS[:2], "dimensions": 5}
    answer = server.client.post(
        "/embed", json=request, headers={"Accept": "application/octet-stream"}
    )
    assert answer.headers["x-embedding-shape"] == "2,5"
    rows = np.frombuffer(answer.content, dtype="<f4").reshape(2, 5)
    np.testing.assert_array_equal(
        rows, np.float32(server.client.post("/embed", json=request).json())
    )
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_a_tampered_artifact_ends_the_process_with_one_sentence(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    """The file and the cure are named; the exit code is 1; nothing is served."""
    copy = tmp_path / "artifact"
    subprocess.run(["cp", "-r", str(tiny_artifact.path), str(copy)], check=True)
    with (copy / MODEL).open("r+b") as file:
        file.write(b"\x00")
    command = [sys.executable, "-m", "s2sent.service", "serve", "--port", "0"]
    command += ["--artifact", str(copy)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "onnx/model.onnx has" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
