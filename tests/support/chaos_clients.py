"""Clients of every kind for `tests.support.chaos`, what they send, and what came back.

Each text has a number and each number a vector that is known beforehand, so an answer that belongs
to another request is seen.
"""

import asyncio
import json
import random
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder

TOLERANCE = 1e-5
PATIENCE_SECONDS = 60.0
TEXTS = 400
NONSENSE: tuple[tuple[dict[str, str], bytes, int], ...] = (
    ({"content-type": "application/json"}, b'{"inputs": ', 400),
    ({"content-type": "application/json"}, b'{"inputs": 3}', 422),
    ({"content-type": "application/json"}, b'{"inputs": []}', 400),
    ({"content-type": "text/plain"}, b"hello", 415),
    ({"content-type": "application/json"}, b'{"inputs": "a", "dimensions": 99999}', 422),
)
# What an accepted request may be answered with besides 200, and what a refused one gets: an encoder
# that fails (424) or dies (503), a full queue (429), no time left (504).
MISFORTUNES = {424, 429, 503, 504}
PROBE_STATUSES = (200, 503)
OPENAI_MISFORTUNES = {500, 429, 503, 504}  # the dialect has no 424


@dataclass
class Tally:
    """What was sent and what came back."""

    sent: Counter[str] = field(default_factory=Counter)  # by kind of client
    answered: Counter[int] = field(default_factory=Counter)  # by status
    left: int = 0  # requests whose client went away on purpose
    not_connected: int = 0  # nobody listened: between a stop and the next start
    vectors: int = 0  # compared
    wrong: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)  # connections, by the request's id
    unanswered: list[str] = field(default_factory=list)  # of these, those the server had taken
    retry_after: Counter[int] = field(default_factory=Counter)  # seconds
    latencies: list[float] = field(default_factory=list)  # seconds, of answers with 200
    reloads: int = 0  # of the server's file of API keys

    @property
    def failures(self) -> list[str]:
        """What must not be."""
        return [*self.wrong, *self.unanswered]


class Sentences:
    """Numbered texts and the vector each has when it is alone, of length 1."""

    def __init__(self, artifact: Artifact, count: int = TEXTS) -> None:
        encoder = OnnxEncoder(artifact, intra_op_num_threads=1)
        self.texts = [
            f"Sentence number {n} is about {n % 17} dogs." * (1 + n % 5) for n in range(count)
        ]
        self.vectors = np.concatenate([encoder.encode([text]) for text in self.texts])

    def pick(self, chance: random.Random, most: int) -> list[int]:
        """The numbers of one to ``most`` texts."""
        return [chance.randrange(len(self.texts)) for _ in range(chance.randint(1, most))]


Judge = Callable[[bytes], None]


class Clients:
    """A crowd that sends requests of every kind until it is told to stop."""

    def __init__(self, sentences: Sentences, tally: Tally, *, seed: int) -> None:
        self._sentences = sentences
        self.tally = tally
        self._chance = random.Random(seed)
        self.stopped = False

    async def run(self, client: httpx.AsyncClient, count: int) -> None:
        """``count`` clients, each with one request at a time."""
        await asyncio.gather(*(self._one(client) for _ in range(count)))

    async def _one(self, client: httpx.AsyncClient) -> None:
        kinds: list[tuple[Callable[[httpx.AsyncClient], Awaitable[None]], int]] = [
            (self._embed, 40), (self._raw, 15), (self._similarity, 15), (self._openai, 15),
            (self._nonsense, 5), (self._leave, 5), (self._dawdle, 2), (self._ask, 3),
        ]  # fmt: skip
        calls, weights = zip(*kinds, strict=True)
        while not self.stopped:
            call = self._chance.choices(calls, weights)[0]
            self.tally.sent[call.__name__.strip("_")] += 1
            await call(client)

    # --- kinds of requests ---

    async def _embed(self, client: httpx.AsyncClient) -> None:
        numbers = self._sentences.pick(self._chance, 12)
        texts = [self._sentences.texts[n] for n in numbers]
        await self._post(client, "/embed", {"inputs": texts}, self._vectors(numbers, json.loads))

    async def _raw(self, client: httpx.AsyncClient) -> None:
        numbers = self._sentences.pick(self._chance, 3)
        texts = [self._sentences.texts[n] for n in numbers]
        judge = self._vectors(
            numbers, lambda body: np.frombuffer(body, "<f4").reshape(len(numbers), -1)
        )
        await self._post(
            client, "/embed", {"inputs": texts}, judge, {"accept": "application/octet-stream"}
        )

    async def _openai(self, client: httpx.AsyncClient) -> None:
        numbers = self._sentences.pick(self._chance, 6)
        texts = [self._sentences.texts[n] for n in numbers]

        def rows(body: bytes) -> list[NDArray[np.float32]]:
            data = json.loads(body)["data"]
            return [np.frombuffer(b64decode(entry["embedding"]), "<f4") for entry in data]

        body = {"input": texts, "model": "any", "encoding_format": "base64"}
        await self._post(client, "/v1/embeddings", body, self._vectors(numbers, rows))

    async def _similarity(self, client: httpx.AsyncClient) -> None:
        source, *others = self._sentences.pick(self._chance, 5) * 2
        texts, vectors = self._sentences.texts, self._sentences.vectors

        def judge(body: bytes) -> None:
            self._compare(np.array(json.loads(body)), vectors[others] @ vectors[source], others)

        form = {"source_sentence": texts[source], "sentences": [texts[n] for n in others]}
        await self._post(client, "/similarity", {"inputs": form}, judge)

    async def _nonsense(self, client: httpx.AsyncClient) -> None:
        headers, content, status = self._chance.choice(NONSENSE)
        response = await self._send(client, "/embed", content, headers)
        # A full or ending service refuses before it reads a body.
        if response is not None and response.status_code not in {status, 429, 503}:
            self.tally.wrong.append(f"{content!r} was answered {response.status_code}")

    async def _ask(self, client: httpx.AsyncClient) -> None:
        """Probes are answered whatever happens to the engine."""
        path = self._chance.choice(["/health", "/ready", "/metrics", "/info"])
        response = await self._send(client, path, None, {})
        if response is not None and response.status_code not in {200, 503}:
            self.tally.wrong.append(f"{path} was answered {response.status_code}")

    async def _leave(self, client: httpx.AsyncClient) -> None:
        """Ask for much and be gone before it is done."""
        texts = self._sentences.texts[:64]
        connection = await self._connect(client)
        if connection is None:
            return
        reader, writer = connection
        writer.write(_request(client, json.dumps({"inputs": texts}).encode(), self._new_id()))
        await writer.drain()
        await asyncio.sleep(self._chance.uniform(0, 0.05))
        writer.close()
        self.tally.left += 1
        del reader

    async def _dawdle(self, client: httpx.AsyncClient) -> None:
        """Send a body in pieces, and be answered all the same."""
        connection = await self._connect(client)
        if connection is None:
            return
        reader, writer = connection
        text, request_id = self._chance.choice(self._sentences.texts), self._new_id()
        request = _request(client, json.dumps({"inputs": text}).encode(), request_id)
        try:
            for start in range(0, len(request), 97):
                writer.write(request[start : start + 97])
                await writer.drain()
                await asyncio.sleep(0.01)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
            status = int(head.split()[1])
            self.tally.answered[status] += 1
            if status not in MISFORTUNES | {200}:
                self.tally.wrong.append(f"a slow body was answered {status}")
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.tally.broken[request_id] = f"a slow body: {type(error).__name__}"
        finally:
            writer.close()

    # --- sending and judging ---

    def _new_id(self) -> str:
        return f"chaos-{self._chance.getrandbits(64):016x}"

    async def _post(
        self,
        client: httpx.AsyncClient,
        path: str,
        body: dict[str, Any],
        judge: Judge,
        headers: dict[str, str] | None = None,
    ) -> None:
        content = json.dumps(body).encode()
        began = time.perf_counter()
        response = await self._send(
            client, path, content, {"content-type": "application/json"} | (headers or {})
        )
        if response is None:
            return
        if response.status_code == 200:
            self.tally.latencies.append(time.perf_counter() - began)
            judge(response.content)
        elif response.status_code not in (
            OPENAI_MISFORTUNES if path.startswith("/v1") else MISFORTUNES
        ):
            self.tally.wrong.append(f"{path} was answered {response.status_code}: {response.text}")
        if response.status_code in {429, 503}:
            await asyncio.sleep(0.02)  # far less than asked for: the flood goes on

    async def _send(
        self, client: httpx.AsyncClient, path: str, content: bytes | None, headers: dict[str, str]
    ) -> httpx.Response | None:
        """The answer, or None where nobody listened or the connection broke."""
        method = "GET" if content is None else "POST"
        request_id = self._new_id()
        try:
            response = await client.request(
                method, path, content=content, headers={"x-request-id": request_id, **headers}
            )
        except httpx.ConnectError:
            self.tally.not_connected += 1
            await asyncio.sleep(0.05)
            return None
        except httpx.HTTPError as error:
            self.tally.broken[request_id] = f"{path}: {type(error).__name__} {error}"
            return None
        self.tally.answered[response.status_code] += 1
        if "retry-after" in response.headers:
            self.tally.retry_after[int(response.headers["retry-after"])] += 1
        return response

    async def _connect(
        self, client: httpx.AsyncClient
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        try:
            return await asyncio.open_connection(client.base_url.host, client.base_url.port)
        except OSError:
            self.tally.not_connected += 1
            return None

    def _vectors(self, numbers: Sequence[int], parse: Callable[[bytes], Any]) -> Judge:
        expected = self._sentences.vectors[list(numbers)]
        return lambda body: self._compare(np.array(parse(body)), expected, numbers)

    def _compare(self, got: NDArray[Any], expected: NDArray[Any], numbers: Sequence[int]) -> None:
        self.tally.vectors += len(numbers)
        if got.shape != expected.shape or not np.abs(got - expected).max() <= TOLERANCE:
            self.tally.wrong.append(f"the answer for the texts {list(numbers)} is another's")


def _request(client: httpx.AsyncClient, body: bytes, request_id: str) -> bytes:
    head = (
        f"POST /embed HTTP/1.1\r\nHost: {client.base_url.host}\r\nConnection: close\r\n"
        f"Authorization: {client.headers['authorization']}\r\n"
        f"X-Request-Id: {request_id}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
