"""A server that answers every text with one vector, for tests of the benchmarks.

python http_embedder.py --port PORT [--loading N] [--status S]
"""

import argparse
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VECTOR = [0.6, 0.8]


class EmbedderServer(ThreadingHTTPServer):
    """Answers POST with vectors, and GET of a readiness route with 200."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), EmbedderHandler)
        self.delays: list[float] = []  # seconds of the next answers, one each
        self.status = 200
        self.loading = 0  # so many texts are answered 503 first, as by a server that loads a model

    @property
    def origin(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"


class EmbedderHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: EmbedderServer

    def do_GET(self) -> None:
        """Readiness."""
        self._answer("ready")

    def do_POST(self) -> None:
        """Vectors."""
        inputs = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
        if self.server.delays:
            time.sleep(self.server.delays.pop())
        if self.server.loading:
            self.server.loading -= 1
            self._answer("loading", status=503)
            return
        self._answer([VECTOR] * (1 if isinstance(inputs, str) else len(inputs)))

    def _answer(self, content: Any, status: int | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status or self.server.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Keep the test's output clean."""


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--loading", type=int, default=0)
    parser.add_argument("--status", type=int, default=200)
    options = parser.parse_args()
    server = EmbedderServer(options.port)
    server.loading, server.status = options.loading, options.status
    server.serve_forever()


if __name__ == "__main__":
    main()
