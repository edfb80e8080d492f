"""The bodies that real clients send are understood, and docs/clients.md says what is tested.

`make test-clients` runs the clients themselves; here are the requests they sent, byte for byte.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.fake_engine import FakeEngine, client_of, vector_of

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
CHECKS = ROOT / "tests" / "clients"

# What the snippets of docs/clients.md sent, as recorded between each client and the service.
TWO = '["A man is playing a guitar.","Someone plays music."]'
PACKED = '{"model":"s2sent","input":' + TWO + ',"encoding_format":"base64"}'
RECORDED: dict[str, tuple[str, str]] = {
    "openai 3.54.0": ("/v1/embeddings", PACKED),
    "openai 3.54.0, all options": (
        "/v1/embeddings",
        '{"model":"m","input":"a b","user":"u","dimensions":8,"encoding_format":"float"}',
    ),
    "huggingface_hub 2.4.0": ("/embed", '{"inputs":"A man is playing a guitar."}'),
    "huggingface_hub 2.4.0, all options": (
        "/embed",
        '{"inputs":"a b","normalize":false,"truncate":true,"truncation_direction":"Left",'
        '"dimensions":8}',
    ),
    "huggingface_hub 2.4.0, similarity": (
        "/similarity",
        '{"inputs":{"source_sentence":"A man is playing a guitar.","sentences":'
        '["Someone plays music.","The stock market fell."]},"parameters":{}}',
    ),
    "huggingface-api-haystack 3.1.0": (
        "/",
        '{"inputs":"Someone plays music.","normalize":true,"truncate":true}',
    ),
    "huggingface-api-haystack 3.1.0, documents": (
        "/",
        '{"inputs":["A man is playing a guitar."],"normalize":true,"truncate":true}',
    ),
    "langchain-openai 1.7.3": ("/v1/embeddings", PACKED),
    "llama-index-embeddings-text-embeddings-inference 0.6.0": (
        "/embed",
        '{"inputs":' + TWO + ',"truncate":true}',
    ),
    "llama-index-embeddings-openai-like 0.4.0": ("/v1/embeddings", PACKED),
    "chromadb 1.5.9": (
        "/embed",
        '{"inputs":["A man is playing a guitar.","The stock market fell."]}',
    ),
    "litellm 1.106.2": ("/v1/embeddings", '{"model":"s2sent","input":' + TWO + "}"),
    "voyageai 0.5.0": (
        "/v1/embeddings",
        '{"input": ["A man is playing a guitar.", "Someone plays music."], "model": "s2sent", '
        '"input_type": null, "truncation": true, "output_dtype": null, "output_dimension": null, '
        '"encoding_format": "base64"}',
    ),
    "mteb 2.26.24, the first of its texts": (
        "/v1/embeddings",
        '{"model": "s2sent/default", "input": ["A man is playing a guitar."], '
        '"encoding_format": "float"}',
    ),
}

# What other versions and clients are known to send.
TOLERATED: dict[str, tuple[str, dict[str, Any]]] = {
    "haystack's own default": ("/", {"inputs": "text", "truncate": True, "normalize": False}),
    "nulls on /embed": (
        "/embed",
        {
            "inputs": "text",
            "truncate": None,
            "truncation_direction": None,
            "prompt_name": None,
            "normalize": None,
            "dimensions": None,
            "encoding_format": None,
        },
    ),
    "litellm's null": ("/v1/embeddings", {"model": "m", "input": ["a"], "encoding_format": None}),
    "mteb's own field": (
        "/v1/embeddings",
        {"model": "m", "input": ["a"], "truncate_prompt_tokens": 256},
    ),
    "langchain's longest": ("/embeddings", {"model": "m", "input": ["a"] * 1000}),
    "nulls on /v1/embeddings": (
        "/v1/embeddings",
        {"input": "a", "model": None, "user": None, "dimensions": None, "encoding_format": None},
    ),
    "nulls on /similarity": (
        "/similarity",
        {
            "inputs": {"source_sentence": "a", "sentences": ["b", "c"], "pairs": None},
            "parameters": None,
        },
    ),
}


@pytest.mark.parametrize("client", RECORDED)
async def test_what_a_client_sent_is_understood(client: str) -> None:
    path, body = RECORDED[client]
    await assert_understood(path, body)


@pytest.mark.parametrize("variant", TOLERATED)
async def test_what_others_are_known_to_send_is_understood(variant: str) -> None:
    path, body = TOLERATED[variant]
    await assert_understood(path, json.dumps(body))


async def assert_understood(path: str, content: str) -> None:
    """Sends the bytes as they are; every text must have its own vector, or cosine, in order."""
    headers = {"Content-Type": "application/json"}
    response = await client_of(FakeEngine()).post(path, content=content, headers=headers)
    assert response.status_code == 200, response.text
    body, answer = json.loads(content), response.json()
    if path == "/similarity":
        assert len(answer) == len(body["inputs"]["sentences"])
        assert all(isinstance(score, float) for score in answer)
        return
    texts = body.get("inputs", body.get("input"))
    expected = [vector_of(text)[: body.get("dimensions")] for text in as_list(texts)]
    if body.get("normalize") is not False:
        expected = [vector / np.linalg.norm(vector) for vector in expected]
    rows = answer if "inputs" in body else [decoded(item["embedding"]) for item in answer["data"]]
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    if "input" in body:
        asked_for_base64 = body.get("encoding_format") == "base64"
        assert isinstance(answer["data"][0]["embedding"], str) is asked_for_base64


def as_list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def decoded(embedding: str | list[float]) -> Any:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), "<f4")
    return embedding


def pinned() -> dict[str, str]:
    """Package -> version, of the clients that the checks install."""
    files = (CHECKS / "requirements").glob("*.txt")
    lines = [line for file in files for line in file.read_text().split("# what checks")[0].split()]
    return dict(line.split("==") for line in lines)


def test_the_page_and_the_recordings_name_the_versions_that_are_installed() -> None:
    listed = dict(re.findall(r"([\w-]+) (\d+\.\d+\.\d+)(?=[, |])", PAGE))
    recorded = dict(name.split(",")[0].split(" ") for name in RECORDED)
    assert listed == {name: pinned()[name] for name in listed}
    assert recorded == {name: pinned()[name] for name in recorded}
    assert set(pinned()) - {"torch"} == set(listed)


def test_every_snippet_of_the_page_is_run_by_a_check() -> None:
    snippets = re.findall(r"<!-- snippet: ([\w-]+) -->", PAGE)
    checks = "".join(path.read_text(encoding="utf-8") for path in CHECKS.glob("check_*.py"))
    assert len(snippets) == len(set(snippets)) == PAGE.count("```python")
    assert all(f'"{name}"' in checks for name in snippets)


def test_every_family_has_its_checks() -> None:
    families = {path.stem for path in (CHECKS / "requirements").glob("*.txt")}
    assert {f"check_{family}" for family in families} == {p.stem for p in CHECKS.glob("check_*.py")}


def test_the_javascript_clients_are_locked_without_naming_a_registry() -> None:
    folder = CHECKS / "javascript"
    wanted = json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert lock[""]["dependencies"] == wanted
    for name, version in wanted.items():
        assert lock[f"node_modules/{name}"]["version"] == version
    for name, package in lock.items():
        assert "resolved" not in package, name
        assert not name or package["integrity"].startswith("sha512-"), name


def test_every_javascript_snippet_of_the_page_is_marked() -> None:
    marked = re.findall(r"<!-- javascript: [\w-]+ -->\n```javascript\n", PAGE)
    assert len(marked) == PAGE.count("```javascript") == 5
