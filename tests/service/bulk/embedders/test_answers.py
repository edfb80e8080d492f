"""Whatever answers to --server: a sentence or another try, and never a wrong vector."""

import base64
import email.utils
import gzip
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from typer.testing import CliRunner

from s2sent.service.__main__ import app
from s2sent.service.bulk.embedders import remote
from s2sent.service.bulk.embedders.remote import RemoteEmbedder
from s2sent.service.bulk.job import BulkError, Options
from tests.support.fake_embed_service import INFO, FakeService, embed, embedded
from tests.support.fake_embedder import DIM, vector_of
from tests.support.serving import serving

TEXTS = [f"text {number}" for number in range(5)]
GOOD: dict[str, Any] = embedded(
    {"details": True, "on_error": "null", "encoding": "base64", "inputs": TEXTS}, "f" * 64
)


@pytest.fixture
def service() -> Iterator[FakeService]:
    """A service on a free port."""
    with serving(FakeService()) as server:
        yield server


def encoded(numbers: list[float]) -> str:
    """Numbers as an answer has them."""
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()


def with_row(row: object) -> dict[str, Any]:
    """The answer with another first row."""
    return GOOD | {"embeddings": [row, *GOOD["embeddings"][1:]]}


def with_text(**changed: object) -> dict[str, Any]:
    """The answer with other details of its first text."""
    texts = [GOOD["details"]["texts"][0] | changed, *GOOD["details"]["texts"][1:]]
    return GOOD | {"details": GOOD["details"] | {"texts": texts}}


UNUSABLE: dict[str, object] = {
    "a row of one number": with_row(encoded([1.0])),
    "narrower vectors": GOOD | {"embeddings": [encoded([1.0] * (DIM - 1))] * 5},
    "wider vectors": GOOD | {"embeddings": [encoded([1.0] * (DIM + 1))] * 5},
    "no bytes": with_row(""),
    "half a number": with_row(base64.b64encode(b"abc").decode()),
    "no base64": with_row("*" * 88),
    "no ASCII": with_row("é"),
    "a list of numbers": with_row([1.0] * DIM),
    "a row less": GOOD | {"embeddings": GOOD["embeddings"][1:]},
    "a row more": GOOD | {"embeddings": [*GOOD["embeddings"], None]},
    "a text less": GOOD | {"details": GOOD["details"] | {"texts": []}},
    "no rows": GOOD | {"embeddings": None},
    "missing details": {"embeddings": GOOD["embeddings"]},
    "null details": GOOD | {"details": None},
    "null tokens": with_text(tokens=None),
    "broken tokens": with_text(tokens=1.5),
    "endless tokens": with_text(tokens=2**63),
    "negative tokens": with_text(tokens=-1),
    "a number for a truth": with_text(truncated=1),
    "an error": {"error": "No."},
    "a list": GOOD["embeddings"],
    "null": None,
    "a string": "embeddings",
    "a page": b"<!doctype html><title>Sign in</title>",
    "gzip": gzip.compress(orjson.dumps(GOOD)),
    "commands of a terminal": b"\x1b[2J\x1b]0;title\x07",
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_answer_of_another_shape_is_a_sentence(service: FakeService, name: str) -> None:
    content = UNUSABLE[name]
    service.content = content if isinstance(content, bytes) else orjson.dumps(content)
    with pytest.raises(BulkError) as raised:
        embed(service, TEXTS)
    message = str(raised.value)
    assert message.startswith(
        f"{service.url[:-1]}/embed does not answer as a service of s2sent does: "
    )
    assert message.isprintable()
    assert len(message) < 500


@pytest.mark.parametrize(
    ("content", "promised"),
    [(b"", 0), (orjson.dumps(GOOD)[:99], 0), (orjson.dumps(GOOD)[:99], 9)],
    ids=["empty", "the beginning", "less than was promised"],
)
def test_an_answer_that_is_cut_is_asked_for_again(
    service: FakeService, content: bytes, promised: int
) -> None:
    service.content, service.promised = content, promised
    embedded, pauses = embed(service, TEXTS)
    np.testing.assert_array_equal(embedded.vectors, [vector_of(text) for text in TEXTS])
    assert pauses == [0.5]


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 0},
        {"dim": 10**12},
        {"dim": "16"},
        {"max_client_batch_size": 0},
        {"max_client_batch_size": None},
        {"prompts": []},
        {"prompts": {"query": 7}},
        {"depths": ["two"]},
        {"fingerprint": None},
        {"max_input_length": "long"},
    ],
    ids=str,
)
def test_a_description_that_cannot_be_true_is_a_sentence(
    service: FakeService, change: dict[str, Any]
) -> None:
    service.info = orjson.dumps(INFO | change)
    with pytest.raises(BulkError, match=rf"/info does not answer as .*: {next(iter(change))}.*: "):
        RemoteEmbedder(service.url, Options())


def date_in(seconds: float) -> str:
    """A date of HTTP."""
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.parametrize(
    ("header", "pause"),
    [
        ("0", 0.5),
        ("9" * 30, 60),
        ("31536000", 60),
        ("12", 12),
        pytest.param(date_in(365 * 86400), 60, id="in a year"),
        pytest.param(date_in(-60), 0.5, id="a minute ago"),
        ("Mon, 99 Foo 99999 99:99:99 GMT", 0.5),
        ("soon", 0.5),
        ("-1", 0.5),
        ("", 0.5),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_pauses_have_bounds_whatever_is_asked_for(
    service: FakeService, status: int, header: str, pause: float
) -> None:
    service.faults, service.retry_after = [status], header
    _, pauses = embed(service, TEXTS)
    assert pauses == [pause]


def test_a_run_that_waits_says_so_now_and_then(service: FakeService) -> None:
    told: list[str] = []
    service.faults = [503] * 5
    embedder = RemoteEmbedder(service.url, Options(), sleep=lambda _: None, tell=told.append)
    assert embedder.start(TEXTS).wait(60)
    embedder.close()
    assert told == [f"{service.url[:-1]}/embed: 503 Not now. Trying again in 7 s."]


def test_a_short_wait_is_not_told(service: FakeService) -> None:
    told: list[str] = []
    service.faults = [500]
    embedder = RemoteEmbedder(service.url, Options(), sleep=lambda _: None, tell=told.append)
    assert embedder.start(TEXTS).wait(60)
    embedder.close()
    assert told == []


def never(seconds: float) -> bool:
    """A pause that is not to be."""
    pytest.fail(f"it waits for {seconds} s")


LASTING = {
    "a name that is not known": socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    "a name that is not answered": socket.gaierror(socket.EAI_AGAIN, "Temporary failure"),
    "a certificate": ssl.SSLCertVerificationError("certificate verify failed"),
    "no TLS": ssl.SSLError("wrong version number"),
}


@pytest.mark.parametrize("name", LASTING)
def test_names_and_certificates_that_are_wrong_end_the_run_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise LASTING[name]

    monkeypatch.setattr("http.client.HTTPConnection.connect", fail)
    with pytest.raises(BulkError, match=r"http://host/info: no answer \(.*\)\. Check --server\.$"):
        RemoteEmbedder("http://host", Options(), sleep=never)


def test_a_certificate_that_stops_being_good_ends_the_run_and_a_lost_name_does_not(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    embedder = RemoteEmbedder(service.url, Options(), sleep=pauses.append)
    faults: list[Exception] = [LASTING["a name that is not known"], LASTING["a certificate"]]

    def fail(_connection: object) -> None:
        raise faults.pop(0)

    monkeypatch.setattr("http.client.HTTPConnection.connect", fail)
    with pytest.raises(BulkError, match="certificate verify failed"):
        embedder.start(TEXTS).wait(60)
    embedder.close()
    assert pauses == [0.5]


def test_a_port_that_speaks_another_protocol_ends_the_run_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1_000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(BulkError, match=r"no answer \(SSH-2\.0-OpenSSH_9\.2\)"):
            RemoteEmbedder(url, Options(), sleep=never)
        thread.join()


def test_an_answer_without_an_end_is_given_up(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "MAX_ANSWER_BYTES", 2_000)
    service.content = b"{" + b" " * 10_000
    embedded, pauses = embed(service, TEXTS)
    np.testing.assert_array_equal(embedded.vectors, [vector_of(text) for text in TEXTS])
    assert pauses == [0.5]


def test_the_command_ends_with_one_line(service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    service.content = orjson.dumps(GOOD)
    command = ["embed", str(tmp_path / "a.txt"), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*command, "--server", service.url, "--progress", "none"])
    assert result.exit_code == 1
    assert "embeddings has 5 entries for 1 texts. Check --server." in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out" / "_SUCCESS").exists()
