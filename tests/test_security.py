"""What a stranger, or a key's owner, must not be able to see or do, on the real server."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from model.artifact import Artifact
from service.keys import key_line
from tests.server_process import ServerProcess, running_server

OLD, NEW = "s2s_the-old-key", "s2s_the-new-key"


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys"


@pytest.fixture(scope="module")
def server(tiny_artifact: Artifact, keys_file: Path) -> Iterator[ServerProcess]:
    put(keys_file, {"old": OLD})
    with running_server(tiny_artifact.path, "--api-keys-file", str(keys_file)) as server:
        yield server


def put(keys_file: Path, keys: dict[str, str]) -> None:
    """Put these keys in place of those there are, with one rename."""
    partial = keys_file.with_name("partial")
    partial.write_text("\n".join(key_line(name, key) for name, key in keys.items()))
    partial.replace(keys_file)


def embed(client: httpx.Client, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return client.post("/embed", json={"inputs": "a"}, headers=headers).status_code


def ask_until(status: int, server: ServerProcess, key: str) -> None:
    """Ask with a key until it is answered so; the test's own timeout bounds it."""
    while embed(server.client, key) != status:
        pass


class Clients:
    """Threads that ask without pause with the key they were last told."""

    def __init__(self, url: str, key: str, count: int = 3) -> None:
        self.key = key
        self.statuses: list[int] = []
        self._url = url
        self._ended = threading.Event()
        self._turned = threading.Barrier(count + 1)
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, trust_env=False, timeout=30) as client:
            key = self.key
            while not self._ended.is_set():
                self.statuses.append(embed(client, key))
                if key != self.key:
                    key = self.key
                    self._turned.wait(30)

    def turn_to(self, key: str) -> None:
        """Returns once no request is sent with the key before."""
        self.key = key
        self._turned.wait(30)

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(30)


def test_a_key_is_replaced_under_load_and_no_request_is_lost(
    server: ServerProcess, keys_file: Path
) -> None:
    """New key in, clients over, old key out; each step within a second, without a restart."""
    put(keys_file, {"old": OLD})
    ask_until(200, server, OLD)
    assert embed(server.client, NEW) == 401
    clients = Clients(server.url, OLD)
    try:
        put(keys_file, {"old": OLD, "new": NEW})
        ask_until(200, server, NEW)
        clients.turn_to(NEW)
        put(keys_file, {"new": NEW})
        ask_until(401, server, OLD)
    finally:
        clients.end()
    assert len(clients.statuses) > 20
    assert set(clients.statuses) == {200}
