"""Requests that made other embedding servers fail, hang or answer wrongly, on the real server.

Each test names its case. Panics of the tokenizer are in tests/service/engine/test_engine.py.
"""

import json
import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from s2sent.model.artifact.errors import ChecksumMismatch
from s2sent.model.artifact.manifest import MODEL
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from tests.support.server_process import ServerProcess, running_server
from tests.support.wire import Wire, chunked, request

KEY = "s2s_the-key"
NUMBERS = (10**18, 2**63, 2**64, 10**30, 10**400, -(2**63), -(10**30))


@pytest.fixture(scope="module")
def server(each_form: None, tiny_artifact: Artifact) -> Iterator[ServerProcess]:
    with running_server(tiny_artifact.path, "--no-log-requests", "--api-keys", KEY) as server:
        server.client.headers["Authorization"] = f"Bearer {KEY}"
        yield server


def wire(server: ServerProcess) -> Wire:
    return Wire(int(server.url.rpartition(":")[2]))


def longest(server: ServerProcess) -> int:
    return int(server.client.get("/info").json()["max_input_length"])


def embed(server: ServerProcess, inputs: object, **options: object) -> NDArray[np.float32]:
    response = server.client.post("/embed", json={"inputs": inputs, **options})
    assert response.status_code == 200, response.text
    rows = np.array(response.json(), np.float32)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    return rows


def test_texts_of_the_greatest_length_and_of_one_token_more_or_less(server: ServerProcess) -> None:
    """Exactly the maximum is not cut; one more is cut, or refused where it may not be."""
    most = longest(server)
    (ids,) = (
        [token["id"] for token in tokens]
        for tokens in server.client.post("/tokenize", json={"inputs": "a"}).json()
    )
    for length, cut in ((most - 1, 0), (most, 0), (most + 1, 1)):
        text = " ".join(["a"] * (length - len(ids) + 1))
        response = server.client.post("/embed", json={"inputs": text, "details": True})
        assert response.headers["x-truncated"] == str(cut)
        assert response.json()["details"]["texts"] == [
            {"tokens": min(length, most), "unknown": 0, "truncated": bool(cut)}
        ]
        refused = server.client.post("/embed", json={"inputs": text, "truncate": False})
        assert refused.status_code == (422 if cut else 200)


def test_a_short_text_beside_one_that_is_cut(server: ServerProcess) -> None:
    """Each has the embedding that it has alone."""
    long = "a man plays the guitar " * longest(server)
    for pair in (["a", long], [long, "a"]):
        alone = np.concatenate([embed(server, text) for text in pair])
        np.testing.assert_allclose(embed(server, pair), alone, atol=1e-5)


def test_six_thousand_texts_over_several_requests(server: ServerProcess) -> None:
    texts = [f"text {number}" for number in range(6_000)]
    rows = np.concatenate(
        [embed(server, texts[start : start + 2_000]) for start in range(0, len(texts), 2_000)]
    )
    assert len(rows) == len(texts)
    for number in (0, 1_999, 2_000, 5_999):
        np.testing.assert_allclose(rows[number], embed(server, texts[number])[0], atol=1e-5)


def test_no_length_gives_what_is_not_a_number(server: ServerProcess) -> None:
    """Every multiple of 32 and 64 with its neighbours, alone and together."""
    most = longest(server)
    lengths = {at + by for at in range(0, most + 1, 32) for by in (-1, 0, 1)} | {1, 2, 3}
    rows = [[5] * length for length in sorted(lengths) if 0 < length <= most]
    together = embed(server, rows)
    for ids, row in zip(rows, together, strict=True):
        np.testing.assert_allclose(embed(server, ids)[0], row, atol=1e-5)


@pytest.mark.parametrize("host", [b"x/docs?y=", b"x/health", b"/docs", b"x/health?", b"x@/ready"])
def test_a_host_header_opens_no_keyed_route(server: ServerProcess, host: bytes) -> None:
    """CVE-2026-48710: a path check that reads the URL takes the header for a part of the path."""
    for path in (b"/embed", b"/info", b"/v1/embeddings", b"/metrics/../info"):
        sent = request(b'{"inputs": "a", "input": "a"}', path)
        with wire(server) as connection:
            connection.send(sent.replace(b"Host: test", b"Host: " + host))
            assert connection.answer().status in (400, 401), path


def test_three_megabytes_in_chunks_of_a_byte(server: ServerProcess) -> None:
    """CVE-2025-23310: answered, and the server goes on."""
    body = json.dumps({"inputs": "a", "unknown": "x" * 3_000_000}).encode()
    sent = chunked(body, size=1).replace(
        b"Host: test", b"Host: test\r\nAuthorization: Bearer " + KEY.encode()
    )
    with wire(server) as connection:
        assert connection.send(sent).answer().status == 200
    embed(server, "a")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", '{"inputs": "a", "dimensions": %d}'),
        ("/embed", '{"inputs": "a", "depth": %d}'),
        ("/embed", '{"inputs": [%d]}'),
        ("/embed", '{"inputs": ["a", [%d]]}'),
        ("/v1/embeddings", '{"input": "a", "dimensions": %d}'),
        ("/v1/embeddings", '{"input": "a", "depth": %d}'),
        ("/similarity", '{"inputs": {"pairs": [["a", "b"]]}, "parameters": {"depth": %d}}'),
        ("/decode", '{"ids": [%d]}'),
    ],
)
def test_a_huge_integer_in_any_numeric_field_is_a_sentence(
    server: ServerProcess, path: str, body: str
) -> None:
    headers = {"Content-Type": "application/json"}
    for number in NUMBERS:
        response = server.client.post(path, content=body % number, headers=headers)
        assert response.status_code in (400, 422), number
        assert response.json()["error"]


def test_a_huge_top_k_is_every_document_or_a_sentence(server: ServerProcess) -> None:
    headers = {"Content-Type": "application/json"}
    for number in NUMBERS:
        inputs = {"queries": ["q"], "documents": ["a", "b"], "top_k": number}
        content = json.dumps({"inputs": inputs})
        response = server.client.post("/similarity", content=content, headers=headers)
        if number == 10**18:
            assert len(response.json()[0]) == 2
        else:
            assert response.status_code in (400, 422), number
            assert response.json()["error"]


def test_files_that_are_hard_links_are_checked_like_others(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    """A link's content is verified as it is read, and another name of the file may change it."""
    elsewhere = Path(shutil.copytree(tiny_artifact.path, tmp_path / "elsewhere"))
    linked = Path(shutil.copytree(elsewhere, tmp_path / "linked", copy_function=os.link))
    expected = OnnxEncoder(tiny_artifact).encode(["a"])
    assert np.array_equal(OnnxEncoder(Artifact.open(linked)).encode(["a"]), expected)
    with (elsewhere / MODEL).open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(ChecksumMismatch, match=MODEL):
        Artifact.open(linked)


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": "a", "prompt_name": "../../etc/passwd"},
        {"inputs": "a", "dimensions": 10**6},
        {"inputs": {"source_sentence": 1, "pairs": "x"}},
        {"inputs": [[10**9]]},
        {"ids": [10**9]},
        {},
    ],
)
def test_no_error_names_a_path_or_a_module_of_the_server(
    server: ServerProcess, tiny_artifact: Artifact, body: object
) -> None:
    """CVE-2025-23320: an error's text told of what is inside."""
    paths = ("/embed", "/similarity", "/v1/embeddings", "/tokenize", "/decode", "/nowhere")
    for path in paths:
        shown = server.client.post(path, json=body).text
        inside = (str(tiny_artifact.path), "site-packages", ".py", "Traceback", "onnxruntime",
                  "pydantic", "service.", "model.")  # fmt: skip
        assert not [name for name in inside if name in shown], shown


def test_the_package_that_lets_a_configuration_run_code_is_not_installed() -> None:
    """CVE-2026-4372: transformers runs a kernel that config.json names if kernels is there."""
    assert find_spec("kernels") is None
