"""Embedding through a running service: POST /embed over kept connections, with patience.

429 and 503 are tried again after their ``Retry-After`` (RFC 9110, section 10.2.3), a broken
connection or a 504 after a growing pause. A text that cannot be embedded is null in the answer; a
request that is refused as a whole is halved until it is accepted, or one text is refused.
"""

import base64
import contextlib
import http.client
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson

from s2sent.service.bulk.job import BulkError, Embedded, Model, Options, Pending
from s2sent.service.lanes import HEADER as PRIORITY

TEXTS_PER_REQUEST = 256
BODY_BYTES = 1 << 20
CONCURRENT_REQUESTS = 4
TIMEOUT_SECONDS = 120.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
MAX_FAULTS = 8  # in a row, without an answer: a minute and a half
TRY_LATER = (429, 503)
REFUSED_TEXT = (400, 413, 422, 424)
KINDS: dict[str, type[http.client.HTTPConnection]] = {
    "http": http.client.HTTPConnection,
    "https": http.client.HTTPSConnection,
}

Sleep = Callable[[float], bool | None]  # for so many seconds; True where the run was closed


class Refused(Exception):
    """The service does not embed these texts; the message is its own."""


class RemoteEmbedder:
    """A service at ``url``; raises BulkError when it does not answer or has another model."""

    def __init__(
        self, url: str, options: Options, *, key: str | None = None, sleep: Sleep | None = None
    ) -> None:
        self._url = _usable_url(url)
        self._headers: dict[str, str | bytes] = {
            "Content-Type": "application/json",
            PRIORITY: "bulk",
        }
        if key:
            self._headers["Authorization"] = f"Bearer {key}".encode()
        self._own = threading.local()  # a connection for each thread
        self._connections: list[http.client.HTTPConnection] = []  # of all threads, to close them
        self._closed = threading.Event()
        self._sleep = sleep or self._closed.wait
        self._executor = ThreadPoolExecutor(CONCURRENT_REQUESTS, thread_name_prefix="request")
        try:
            self._agree_on(options)
        except BulkError:
            self.close()
            raise

    def start(self, texts: list[str]) -> Pending:
        """Queue the requests for texts."""
        embedded = Embedded(
            vectors=np.zeros((len(texts), self.model.dim), dtype=np.float32),
            tokens=np.full(len(texts), -1, dtype=np.int32),
            truncated=np.zeros(len(texts), dtype=np.bool_),
            errors={},
        )
        requests = Pending(embedded, [])
        for start, stop in self._slices(texts):
            run = self._executor.submit(self._embed, texts[start:stop], start, embedded)
            requests.runs.append(run)
        return requests

    def close(self) -> None:
        """Drop the requests that have not begun; those that wait give up."""
        self._closed.set()
        for connection in self._connections:
            with contextlib.suppress(AttributeError, OSError):  # it is not open
                connection.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
        self._executor.shutdown(cancel_futures=True)
        while self._connections:
            self._connections.pop().close()

    def _agree_on(self, options: Options) -> None:
        """Learn which model the service has, and decide what each request says."""
        with self._known_answer("/info") as info:
            full_depth = info.get("full_depth")  # an earlier service does not have it
            self.model = _model_of(info, full_depth)
            self._most = min(TEXTS_PER_REQUEST, info["max_client_batch_size"])
        options.check(self.model)
        self._fingerprint = self._vector_fingerprint(options.depth or full_depth)
        # Cut and normalised here, as local embeddings are; the service may have other defaults.
        self._options: dict[str, bool | int | str] = {
            **{"normalize": False, "truncate": True, "dimensions": self.model.dim},
            **{"encoding": "base64", "details": True, "on_error": "null"},
        }
        if depth := options.depth or full_depth:
            self._options["depth"] = depth
        if options.prompt_name is not None:
            self._options["prompt_name"] = options.prompt_name

    def _vector_fingerprint(self, depth: int | None) -> str | None:
        """What the answers have as ``model_fingerprint``; None of a service that does not tell."""
        with self._known_answer("/v1/models") as models:
            (served,) = models["data"]
            by_depth: dict[str, str] = served.get("fingerprints_by_depth", {})
            fingerprint: str | None = (
                by_depth.get(str(depth)) if depth else served.get("fingerprint")
            )
        return fingerprint

    @contextlib.contextmanager
    def _known_answer(self, path: str) -> Iterator[dict[str, Any]]:
        """The JSON of a route; raises BulkError where the block finds something else in it."""
        content = self._ask("GET", path, b"")
        try:
            yield orjson.loads(content)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise BulkError(
                f"{self._url.geturl()}{path} does not answer as a service of s2sent does. Check"
                " --server."
            ) from None

    def _slices(self, texts: list[str]) -> list[tuple[int, int]]:
        slices, start, size = [], 0, 0
        for at, text in enumerate(texts):
            if at > start and (at - start == self._most or size + len(text) > BODY_BYTES):
                slices.append((start, at))
                start, size = at, 0
            size += len(text)
        return [*slices, (start, len(texts))]

    def _embed(self, texts: list[str], first: int, embedded: Embedded) -> None:
        body = orjson.dumps({"inputs": texts, **self._options})
        try:
            answer = orjson.loads(self._ask("POST", "/embed", body))
        except Refused as refused:
            if len(texts) == 1:
                embedded.errors[first] = f"the service refused the text: {refused}"
                return
            half = len(texts) // 2
            self._embed(texts[:half], first, embedded)
            self._embed(texts[half:], first + half, embedded)
            return
        details = answer["details"]
        if self._fingerprint and details["model_fingerprint"] != self._fingerprint:
            raise BulkError(
                f"{self._url.geturl()} has another model than when the run began: its vectors are"
                f" {details['model_fingerprint']} and were {self._fingerprint}. Serve the model of"
                " the run and give the same command with --resume, or begin again."
            )
        rows = zip(answer["embeddings"], details["texts"], strict=True)
        for at, (row, text) in enumerate(rows, start=first):
            embedded.tokens[at], embedded.truncated[at] = text["tokens"], text["truncated"]
            if row is None:
                embedded.errors[at] = f"the service cannot embed the text ({text['error_type']})"
            else:
                embedded.vectors[at] = np.frombuffer(base64.b64decode(row), "<f4")

    def _ask(self, method: str, path: str, body: bytes) -> bytes:
        """One answer of status 200, however often it takes; raises Refused or BulkError."""
        pause, faults = FIRST_PAUSE_SECONDS, 0
        while True:
            wait = pause
            try:
                status, retry_after, content = self._send(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                faults += 1
                reason = f"no answer ({str(error) or type(error).__name__})"
            else:
                if status == http.client.OK:
                    return content
                reason = f"{status} {_message(content)}"
                if status in REFUSED_TEXT and method == "POST":
                    raise Refused(_message(content))
                if status in TRY_LATER and retry_after is not None:
                    wait, faults = retry_after, 0
                elif status in (*TRY_LATER, 500, 502, 504):
                    faults += 1
                else:
                    raise BulkError(
                        f"{self._url.geturl()}{path} answered {reason.rstrip('.')}."
                        f" {self._cure(status)}"
                    )
            if faults > MAX_FAULTS or self._sleep(wait):  # closed meanwhile
                raise BulkError(
                    f"{self._url.geturl()}{path}: {reason} after {faults} tries. Start the service"
                    " and run the same command with --resume."
                )
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS) if faults else FIRST_PAUSE_SECONDS

    def _cure(self, status: int) -> str:
        """What helps against an answer that would be the same when it is asked for again."""
        if status == http.client.UNAUTHORIZED and "Authorization" in self._headers:
            return "Write a key that the service accepts to the file of --server-key-file."
        if status == http.client.UNAUTHORIZED:
            return "Name a file with an API key of the service by --server-key-file."
        if status == http.client.NOT_FOUND and self._url.path:
            address = f"{self._url.scheme}://{self._url.netloc}"
            return f"Give --server the address without a path, as in {address}."
        return "Check --server."

    def _send(self, method: str, path: str, body: bytes) -> tuple[int, float | None, bytes]:
        """Status, ``Retry-After`` in seconds and body, over the thread's own connection."""
        connection = getattr(self._own, "connection", None) or self._connect()
        try:
            connection.request(method, f"{self._url.path}{path}", body or None, self._headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException):
            connection.close()  # the next request opens it again
            raise
        seconds = response.headers.get("Retry-After", "")
        return response.status, float(seconds) if seconds.isdecimal() else None, content

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        connection = KINDS[self._url.scheme](host, port, timeout=TIMEOUT_SECONDS)
        self._own.connection = connection
        self._connections.append(connection)
        return connection


def _usable_url(url: str) -> urllib.parse.SplitResult:
    """A URL in its parts; raises BulkError for one that no request can be sent to."""
    try:
        parts = urllib.parse.urlsplit(url.rstrip("/"))
        host, _port = (parts.hostname or "").encode("idna"), parts.port
        rest = parts.query or parts.fragment or "@" in parts.netloc  # would not be sent
        usable = parts.scheme in KINDS and host and parts.path.isascii() and not rest
    except ValueError:  # of the port, of brackets, or of a host's name
        usable = False
    if not usable or " " in url or not url.isprintable():
        raise BulkError(f"--server is {url!r}; write a URL as in http://127.0.0.1:8080.")
    return parts


def _model_of(info: dict[str, Any], full_depth: int | None) -> Model:
    depths = (*info["depths"], *([full_depth] if full_depth else []))
    return Model(
        str(info["served_model_name"]),
        str(info["fingerprint"]),
        int(info["dim"]),
        tuple(map(int, depths)),
        dict(info["prompts"]),
    )


def _message(content: bytes) -> str:
    """The sentence in an error's body, or the beginning of the body."""
    try:
        error = orjson.loads(content)["error"]
        return str(error["message"] if isinstance(error, dict) else error)  # OpenAI's is an object
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return " ".join(content[:200].decode("utf-8", "replace").split())
