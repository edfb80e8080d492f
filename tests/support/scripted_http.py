"""HTTP servers that answer as a test says: by the body of a request, or step by step."""

import json
import socket
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Answers a request with the status that is its body; holds the answers to "wait" together."""

    daemon_threads = True

    def __init__(self, together: int = 1) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.barrier = threading.Barrier(together, timeout=30)
        self.url = f"http://127.0.0.1:{self.server_port}/embed"

    def handle_error(self, *_arguments: Any) -> None:
        """Keep the test's output clean: a request that fails is seen by who sent it."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body == "lose":
            self.close_connection = True
            return
        if body == "wait":
            self.server.barrier.wait()
        self.send_response(body if isinstance(body, int) else 200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_arguments: Any) -> None:
        """Keep the test's output clean."""


class Scene(ExitStack):
    """One side of some connections, played step by step."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__()
        self.listener = listener

    def accept(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.enter_context(connection)

    def read(self, connection: socket.socket) -> str:
        """The body of a request that is a JSON string."""
        data = b""
        while not data.endswith(b'"'):
            data += connection.recv(65536)
        return str(json.loads(data.split(b"\r\n\r\n")[1]))

    def answer(self, connection: socket.socket, status: int = 200, extra: str = "") -> None:
        head = f"HTTP/1.1 {status} OK\r\nServer: s\r\n{extra}CONTENT-LENGTH: 2\r\n\r\n"
        connection.sendall(head.encode() + b"[]")
