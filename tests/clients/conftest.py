"""What the checks of every client share: the server's URL, known vectors, the page's snippets.

They run in environments that hold one family of clients, pytest and numpy, and nothing of this
project. `python -m tests.clients` starts the server and names it in CLIENTS_URL.
"""

import json
import os
import re
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
SNIPPET = re.compile(r"<!-- snippet: ([\w-]+) -->\n```python\n(.*?)```", re.DOTALL)
PAGE_URL = "http://localhost:8080"

# An embedding does not depend on its batch, within this.
TOLERANCE = 1e-5

Rows = NDArray[np.float32]


@pytest.fixture(scope="session")
def url() -> str:
    """The service, without a slash at the end."""
    return os.environ["CLIENTS_URL"]


@pytest.fixture(scope="session")
def known(url: str) -> Callable[..., Rows]:
    """The service's own vectors [n, dim] of texts, each sent alone and read as raw float32."""

    def vectors(texts: Sequence[str], **options: Any) -> Rows:
        return np.concatenate([_raw(url, {"inputs": text, **options}) for text in texts])

    return vectors


@pytest.fixture(scope="session")
def assert_known(known: Callable[..., Rows]) -> Callable[..., None]:
    """Fails unless ``given`` are the vectors of ``texts``, in order."""

    def compare(given: Any, texts: Sequence[str], **options: Any) -> None:
        expected = known(texts, **options)
        assert np.shape(given) == expected.shape
        np.testing.assert_allclose(np.asarray(given, np.float32), expected, atol=TOLERANCE)

    return compare


@pytest.fixture(scope="session")
def run_snippet(url: str) -> Callable[[str], dict[str, Any]]:
    """Runs a snippet of docs/clients.md against the service; returns its variables."""
    snippets = dict(SNIPPET.findall(PAGE.read_text(encoding="utf-8")))

    def run(name: str) -> dict[str, Any]:
        code = snippets[name]
        assert PAGE_URL in code
        variables: dict[str, Any] = {}
        exec(compile(code.replace(PAGE_URL, url), f"{PAGE.name}:{name}", "exec"), variables)  # noqa: S102  # our own page
        return variables

    return run


def _raw(url: str, body: dict[str, Any]) -> Rows:
    request = urllib.request.Request(
        f"{url}/embed",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Accept": "application/octet-stream"},
    )
    with urllib.request.urlopen(request) as answer:
        shape = [int(size) for size in answer.headers["x-embedding-shape"].split(",")]
        return np.frombuffer(answer.read(), "<f4").reshape(shape)
