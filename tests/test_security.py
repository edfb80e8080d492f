"""What a stranger, or a key's owner, must not be able to see or do, on the real server."""

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from s2sent.model.artifact.errors import ChecksumMismatch
from s2sent.model.artifact.manifest import CANARY, CONFIG, MANIFEST, MODEL, TOKENIZER
from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.service.access.api_keys import digest_of, key_line
from tests.support.server_process import LOCAL, ServerProcess, running_server

OLD, NEW, PLAIN = "s2s_the-old-key", "s2s_the-new-key", "s2s_the-plain-key"
WRONG = "s2s_a-wrong-key"
TEXT = "Grandmother's maiden name"
SECRETS = [
    *(OLD, NEW, PLAIN, WRONG),
    *(digest_of(key).hex() for key in (OLD, NEW, PLAIN, WRONG)),
    *(TEXT, "maiden", "Grandmother"),
]

JSON = "application/json"
READ = [
    *("/", "/docs", "/openapi.json", "/info", "/health", "/ping", "/ready", "/metrics"),
    "/v1/models",
]
WORK: list[tuple[str, object]] = [
    ("/embed", {"inputs": TEXT}),
    ("/embed", {"inputs": [TEXT, ""]}),
    ("/embed", {"inputs": TEXT * 1_000, "truncate": False}),
    ("/embed", {"inputs": {TEXT: TEXT}}),
    ("/embed", {"inputs": TEXT, "dimensions": 0, TEXT: TEXT}),
    ("/embed", {"inputs": TEXT, "prompt_name": TEXT}),
    ("/similarity", {"inputs": {"pairs": [[TEXT, TEXT]]}}),
    ("/v1/embeddings", {"input": TEXT, "model": TEXT, "user": TEXT}),
    ("/tokenize", {"inputs": TEXT}),
    ("/decode", {"ids": [TEXT]}),
    (f"/{TEXT}", {"inputs": TEXT}),
    (f"/embed?api_key={PLAIN}&text={TEXT}", {"inputs": TEXT}),
]


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys"


@pytest.fixture(scope="module")
def folder(
    each_form: None, tiny_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A copy of the artifact, which a test may spoil: nothing is read of it after the start."""
    return Path(shutil.copytree(tiny_artifact.path, tmp_path_factory.mktemp("served") / "artifact"))


@pytest.fixture(scope="module")
def server(each_form: None, folder: Path, keys_file: Path) -> Iterator[ServerProcess]:
    put(keys_file, {"old": OLD})
    flags = ("--api-keys-file", str(keys_file), "--api-keys", PLAIN, "--log-level", "debug")
    with running_server(folder, *flags) as server:
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
        time.sleep(0.01)


class Clients:
    """Threads that ask without pause with the key they were last told."""

    def __init__(self, url: str, key: str, count: int = 3) -> None:
        self.key = key
        self.statuses: list[int] = []
        self._url = url
        self._ended = threading.Event()
        self._turned = threading.Barrier(count + 1)
        self._threads = [threading.Thread(target=self._ask, args=(key,)) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, key: str) -> None:
        with httpx.Client(base_url=self._url, **LOCAL, timeout=30) as client:
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


def test_no_key_and_no_text_is_shown_by_any_route_or_line_of_the_log(
    server: ServerProcess, keys_file: Path
) -> None:
    """After requests that succeed and fail in many ways, with the most talkative log."""
    put(keys_file, {"old": OLD, "new": NEW})
    client = server.client
    for key in (OLD, NEW, PLAIN, WRONG):
        client.headers["Authorization"] = f"Bearer {key}"
        for path, body in WORK:
            client.post(path, json=body)
        client.post("/embed", content=f'{{"inputs": "{TEXT}', headers={"Content-Type": JSON})
        client.post("/embed", content=TEXT, headers={"Content-Type": TEXT.replace("'", "")})
    client.headers["Authorization"] = f"Bearer {PLAIN}"
    shown = {path: client.get(path) for path in READ}
    assert {path: answer.status_code for path, answer in shown.items()} == dict.fromkeys(READ, 200)
    last = shown[READ[-1]].headers["x-request-id"]
    while not any(line.get("request_id") == last for line in server.log):
        time.sleep(0.01)  # the log is written by a thread of its own
    statuses = {line.get("status") for line in server.log}
    assert statuses >= {200, 400, 401, 404, 415, 422}
    everything = [f"{answer.headers} {answer.text}" for answer in shown.values()]
    for place in [*everything, *map(str, server.log)]:
        assert not [secret for secret in SECRETS if secret in place], place


def test_a_key_is_replaced_under_load_and_no_request_is_lost(
    server: ServerProcess, keys_file: Path
) -> None:
    """New key in, clients over, old key out; each step within a second, without a restart."""
    put(keys_file, {"old": OLD})
    ask_until(401, server, NEW)  # which the file before may have had
    ask_until(200, server, OLD)  # which it may not have had
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


def test_serving_goes_on_when_the_artifact_changes_and_when_it_is_gone(
    server: ServerProcess, folder: Path, keys_file: Path
) -> None:
    """Also what was never asked for before: the first /tokenize reads nothing either."""
    put(keys_file, {"old": OLD})
    ask_until(200, server, OLD)
    server.client.headers["Authorization"] = f"Bearer {OLD}"
    before = server.client.post("/embed", json={"inputs": "a man plays"}).json()
    for name in (MODEL, TOKENIZER, CONFIG, CANARY, MANIFEST):
        (folder / name).write_bytes(b"changed")
    assert server.client.post("/embed", json={"inputs": "a man plays"}).json() == before
    shutil.rmtree(folder)
    assert server.client.post("/embed", json={"inputs": "a man plays"}).json() == before
    assert server.client.post("/tokenize", json={"inputs": "a man"}).status_code == 200
    assert server.client.get("/info").json()["dim"] == len(before[0])
    assert server.client.get("/ready").status_code == 200


@pytest.mark.parametrize("name", [MODEL, TOKENIZER])
def test_a_file_exchanged_after_the_check_is_not_what_is_loaded(
    tiny_artifact: Artifact, tmp_path: Path, name: str
) -> None:
    """The graph is verified as it is loaded; the tokenizer is what was verified at first."""
    artifact = Artifact.open(shutil.copytree(tiny_artifact.path, tmp_path / "artifact"))
    (artifact.path / name).write_bytes(b"exchanged")
    if name == MODEL:
        with pytest.raises(ChecksumMismatch, match=MODEL):
            OnnxEncoder(artifact)
    else:
        assert OnnxEncoder(artifact).encode(["a"]).shape == (1, artifact.manifest.dim)
