"""A service without a model for the tests of `s2sent embed --server`, which can go wrong."""

import base64
import http.server
import threading
from typing import Any

import orjson

from s2sent.service.bulk.embedders.remote import RemoteEmbedder
from s2sent.service.bulk.job import Embedded, Options
from tests.support.fake_embedder import DIM, vector_of

INFO = {
    "served_model_name": "fake",
    "fingerprint": "f" * 64,
    "dim": DIM,
    "depths": [2],
    "prompts": {"query": "query: "},
    "max_client_batch_size": 8,
}
MODELS = {"data": [{"fingerprint": "f" * 64, "fingerprints_by_depth": {"2": "f" * 64}}]}
BROKEN = 0  # instead of a status: the connection is closed without an answer


def embedded(body: dict[str, Any], fingerprint: str) -> dict[str, Any]:
    """The answer of /embed to a request for details; texts that have "null" in them fail."""
    assert body["details"] is True
    assert body["on_error"] == "null"
    assert body["encoding"] == "base64"
    failed = ["null" in text for text in body["inputs"]]
    return {
        "embeddings": [
            None if null else base64.b64encode(vector_of(text).astype("<f4").tobytes()).decode()
            for text, null in zip(body["inputs"], failed, strict=True)
        ],
        "details": {
            "model_fingerprint": fingerprint,
            "texts": [
                {"tokens": 0, "truncated": False, "error": "Input 0.", "error_type": "Backend"}
                if null
                else {"tokens": len(text), "truncated": len(text) > 20}
                for text, null in zip(body["inputs"], failed, strict=True)
            ],
        },
    }


class FakeService(http.server.ThreadingHTTPServer):
    """Answers with the statuses of ``faults`` first, and refuses texts that have "bad" in them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.info = orjson.dumps(INFO)
        self.models = orjson.dumps(MODELS)
        self.not_found = b"null"
        self.faults: list[int] = []
        self.retry_after = "7"  # of 429 and 503
        self.content: bytes | None = None  # what /embed answers in place of embeddings, once
        self.promised = 0  # bytes by which Content-Length is more than there are, once
        self.gate = threading.Event()  # answers wait for it
        self.gate.set()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/base/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep the test's output clean: a client that closes is what some tests are about."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    server: FakeService
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        answers = {"/base/info": self.server.info, "/base/v1/models": self.server.models}
        answer = answers.get(self.path)
        self._answer(200 if answer else 404, answer or self.server.not_found)

    def do_POST(self) -> None:
        body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.headers.append(dict(self.headers))
        if self.server.faults:
            status = self.server.faults.pop(0)
            if status == BROKEN:
                self.close_connection = True
            else:
                self._answer(status, b'{"error":"Not now."}')
        elif any("bad" in text for text in body["inputs"]):
            self._answer(424, b'{"error":"A text is bad."}')
        else:
            self.server.bodies.append(body)
            self.server.gate.wait()
            changed = any("changed" in text for text in body["inputs"])
            answer = orjson.dumps(embedded(body, ("e" if changed else "f") * 64))
            given, self.server.content = self.server.content, None
            self._answer(200, answer if given is None else given)

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        if status in (429, 503):
            self.send_header("Retry-After", self.server.retry_after)
        promised = self.server.promised if self.command == "POST" else 0
        self.server.promised -= promised
        self.send_header("Content-Length", str(len(content) + promised))
        self.close_connection |= promised > 0
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: Any) -> None:
        """Keep the test's output clean."""


def embed(
    service: FakeService, texts: list[str], options: Options | None = None, *, key: str = "k"
) -> tuple[Embedded, list[float]]:
    """Embed texts; returns the embeddings and the pauses that were made."""
    pauses: list[float] = []
    embedder = RemoteEmbedder(service.url, options or Options(), key=key, sleep=pauses.append)
    try:
        pending = embedder.start(texts)
        assert pending.wait(60)
        return pending.embedded, pauses
    finally:
        embedder.close()
