"""Runs a `socketserver` server of a test in a thread of its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from typing import TypeVar

ServerType = TypeVar("ServerType", bound=BaseServer)


@contextmanager
def serving(server: ServerType) -> Iterator[ServerType]:
    """Let a server answer while the block runs, and close it at the end."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
