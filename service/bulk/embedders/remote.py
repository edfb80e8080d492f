"""Embedding through a running service: POST /embed over kept connections, with patience.

429 and 503 are tried again after their ``Retry-After`` (RFC 9110, section 10.2.3) within bounds, a
broken connection, a cut answer or a 504 after a growing pause. A text that cannot be embedded is
null in the answer; a request that is refused as a whole is halved until it is accepted, or one text
is refused. Of a text above the service's limit of a body less is sent, where that is all it reads.
"""

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import orjson

from s2sent.service.bulk.embedders.answers import (
    CutAnswer,
    Embeddings,
    Info,
    Models,
    Shape,
    UnusableAnswer,
    message,
    parse,
    retry_after,
    shown,
)
from s2sent.service.bulk.embedders.server_url import KINDS, usable_url
from s2sent.service.bulk.job import BulkError, Embedded, Options, Pending
from s2sent.service.lanes import HEADER as PRIORITY

TEXTS_PER_REQUEST = 256
BODY_BYTES = 1 << 20
CONCURRENT_REQUESTS = 4
TIMEOUT_SECONDS = 120.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
LONGEST_RETRY_AFTER_SECONDS = 60.0  # the most that a service of s2sent asks for
SILENT_SECONDS = 5.0  # of waiting for one answer, after which it is told
TELL_SECONDS = 30.0  # between two lines about it
MAX_FAULTS = 8  # in a row, without an answer: a minute and a half
MAX_ANSWER_BYTES = 1 << 26
TRY_LATER = (429, 503)
BROKEN = (500, 502, 504)
REFUSED_TEXT = (400, 413, 422, 424)

Sleep = Callable[[float], bool | None]  # for so many seconds; True where the run was closed


class Refused(Exception):
    """The service does not embed these texts; the message is its own."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class TryAgain(Exception):
    """The request may succeed later; ``seconds`` is when the service says so."""

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds


class RemoteEmbedder:
    """A service at ``url``; raises BulkError when it does not answer or has another model.

    ``tell`` is given a sentence now and then while a request is tried again.
    """

    def __init__(
        self,
        url: str,
        options: Options,
        *,
        key: str | None = None,
        sleep: Sleep | None = None,
        tell: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        self._url = usable_url(url)
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
        self._tell = tell
        self._told = -TELL_SECONDS
        self._has_answered = False
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
        info = self._ask(Info, "GET", "/info")
        self.model = info.model
        self._most = min(TEXTS_PER_REQUEST, info.max_client_batch_size)
        options.check(self.model)
        depth = options.depth or info.full_depth
        self._fingerprint = self._ask(Models, "GET", "/v1/models").fingerprint(depth)
        # Cut and normalised here, as local embeddings are; the service may have other defaults.
        self._options: dict[str, bool | int | str] = {
            **{"normalize": False, "truncate": True, "dimensions": self.model.dim},
            **{"encoding": "base64", "details": True, "on_error": "null"},
        }
        if depth:
            self._options["depth"] = depth
        if options.prompt_name is not None:
            self._options["prompt_name"] = options.prompt_name

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
            answer = self._ask(Embeddings, "POST", "/embed", body)
        except Refused as refused:
            if len(texts) == 1:
                self._embed_less(texts[0], first, embedded, refused)
                return
            half = len(texts) // 2
            self._embed(texts[:half], first, embedded)
            self._embed(texts[half:], first + half, embedded)
            return
        found = answer.details.model_fingerprint
        if self._fingerprint and found != self._fingerprint:
            raise BulkError(
                f"{self._url.geturl()} has another model than when the run began: its vectors are"
                f" {shown(found)} and were {self._fingerprint}. Serve the model of the run and give"
                " the same command with --resume, or begin again."
            )
        try:
            rows = list(answer.rows(len(texts), self.model.dim))
        except UnusableAnswer as error:
            raise self._unusable("/embed", error) from None
        for at, (row, text) in enumerate(rows, start=first):
            embedded.tokens[at], embedded.truncated[at] = text.tokens, text.truncated
            if row is None:
                reason = shown(text.error_type or "it does not say why")
                embedded.errors[at] = f"the service cannot embed the text ({reason})"
            else:
                embedded.vectors[at] = row

    def _embed_less(self, text: str, at: int, embedded: Embedded, refused: Refused) -> None:
        """Embed the beginning of a text that is too large to send; what is cut must not be read."""
        if refused.status == http.client.REQUEST_ENTITY_TOO_LARGE and len(text) > 1:
            self._embed([text[: len(text) // 2]], at, embedded)
            if embedded.truncated[at] or at in embedded.errors:
                return
            embedded.vectors[at], embedded.tokens[at] = 0, -1
        embedded.errors[at] = f"the service refused the text: {str(refused).rstrip('.')}"

    def _ask(self, shape: type[Shape], method: str, path: str, body: bytes = b"") -> Shape:
        """One answer of status 200, however often it takes; raises Refused or BulkError."""
        pause, faults, waited = FIRST_PAUSE_SECONDS, 0, 0.0
        while True:
            try:
                return self._ask_once(shape, method, path, body)
            except TryAgain as again:
                reason, asked = str(again), again.seconds
            faults = faults + 1 if asked is None else 0
            if asked is None:
                wait, pause = pause, min(2 * pause, LONGEST_PAUSE_SECONDS)
            else:
                wait = min(max(asked, FIRST_PAUSE_SECONDS), LONGEST_RETRY_AFTER_SECONDS)
                pause = FIRST_PAUSE_SECONDS
            waited += wait
            if waited > SILENT_SECONDS and time.monotonic() - self._told > TELL_SECONDS:
                self._told = time.monotonic()
                self._tell(f"{self._url.geturl()}{path}: {reason}. Trying again in {wait:.0f} s.")
            if faults > MAX_FAULTS or self._sleep(wait):  # closed meanwhile
                raise BulkError(
                    f"{self._url.geturl()}{path}: {reason} after {faults} tries. Start the service"
                    " and run the same command with --resume."
                )

    def _ask_once(self, shape: type[Shape], method: str, path: str, body: bytes) -> Shape:
        """One answer of status 200; raises TryAgain, Refused or BulkError."""
        try:
            status, seconds, content = self._send(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            reason = f"no answer ({shown(error) or type(error).__name__})"
            if self._is_lasting(error):
                raise BulkError(f"{self._url.geturl()}{path}: {reason}. Check --server.") from None
            raise TryAgain(reason) from None
        if status == http.client.OK:
            return self._read(shape, path, content)
        reason = f"{status} {message(content)}".rstrip(" .")
        if status in REFUSED_TEXT and method == "POST":
            raise Refused(message(content), status)
        if status in TRY_LATER or status in BROKEN:
            raise TryAgain(reason, seconds if status in TRY_LATER else None)
        raise BulkError(f"{self._url.geturl()}{path} answered {reason}. {self._cure(status)}")

    def _read(self, shape: type[Shape], path: str, content: bytes) -> Shape:
        try:
            answer = parse(shape, content)
        except CutAnswer as error:
            if self._has_answered:
                raise TryAgain(str(error)) from None
            raise self._unusable(path, error) from None
        except UnusableAnswer as error:
            raise self._unusable(path, error) from None
        self._has_answered = True
        return answer

    def _is_lasting(self, error: Exception) -> bool:
        """Whether a connection fails in a way that does not pass: by a name, TLS or a protocol."""
        if self._has_answered:
            return isinstance(error, ssl.SSLCertVerificationError)
        kinds = (ssl.SSLError, socket.gaierror, http.client.BadStatusLine)
        return isinstance(error, kinds) and not isinstance(error, ConnectionError)

    def _unusable(self, path: str, error: UnusableAnswer) -> BulkError:
        return BulkError(
            f"{self._url.geturl()}{path} does not answer as a service of s2sent does: {error}."
            " Check --server."
        )

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
            content = response.read(MAX_ANSWER_BYTES)
            if not response.isclosed():  # it is longer, or cut
                response.close()
                connection.close()
        except (OSError, http.client.HTTPException):
            connection.close()  # the next request opens it again
            raise
        return response.status, retry_after(response.headers.get("Retry-After", "")), content

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        connection = KINDS[self._url.scheme](host, port, timeout=TIMEOUT_SECONDS)
        self._own.connection = connection
        self._connections.append(connection)
        return connection
