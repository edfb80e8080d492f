"""An engine over a fake encoder and tokenizer, which tests can hold up and make fail."""

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.input_errors import InputTooLong
from s2sent.model.runtime.token_spans import TokenSpan
from s2sent.model.runtime.tokenizer import TokenizedText
from s2sent.model.runtime.windows import Windows
from s2sent.service.engine.engine import Engine
from s2sent.service.engine.inference.model import LoadedModel
from s2sent.service.engine.types import EmbedRequest, EmbedResult, Readiness, TextTokenizer
from s2sent.service.errors import ServiceError
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics
from tests.support.linked_engine import LinkedEngine

Result = TypeVar("Result")

DIM = 4
PATIENCE_SECONDS = 60  # a test that waits this long has failed
FOREVER_SECONDS = 1_000.0

# Characters that make the fake encoder misbehave; the fake tokenizer maps characters to ids.
POISON, OUT_OF_MEMORY, NOT_A_NUMBER, ZERO, LETHAL, MISSHAPEN = "!", "^", "?", "$", "#", "%"
PANIC = "~"  # makes the fake tokenizer panic


def vector(text: str, depth: int | None = None) -> list[float]:
    """The one right embedding of a text at a depth: any mix-up of rows shows."""
    digest = hashlib.blake2b(f"{depth} {text}".encode(), digest_size=DIM).digest()
    return [float(byte) for byte in digest]


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class PanicException(BaseException):
    """Named as PyO3 names what a library written in Rust raises when it panics."""


class FakeTokenizer:
    """One token per character; texts above 32 are cut. ``gate`` can hold a call."""

    vocab_size = 0x110000
    unknown_id: int | None = ord("\ufffd")

    def __init__(self) -> None:
        self.calls = 0
        self.threads: set[str] = set()  # that called it
        self.everything_becomes = ""  # a text to put in the place of every other
        self.gate = threading.Event()
        self.gate.set()

    def tokenize(
        self, texts: Sequence[str | Sequence[int]], *, prompt: str = "", truncate: bool = True,
        truncation_direction: str = "right", windows: Windows | None = None,
    ) -> list[TokenizedText]:  # fmt: skip
        self._enter("".join(text for text in texts if isinstance(text, str)))
        rows = []
        for index, original in enumerate(texts):
            text = self.everything_becomes or original
            ids = [ord(letter) for letter in prompt + text] if isinstance(text, str) else list(text)
            if len(ids) > 32 and not truncate:
                raise InputTooLong(index, f"has {len(ids)} tokens; the limit is 32.")
            if windows:  # without overlap
                parts = [ids[at : at + 32] for at in range(0, len(ids) or 1, 32)][: windows.most]
                rows.append(TokenizedText(parts[0], len(ids) > 32 * windows.most, parts[1:]))
                continue
            rows.append(TokenizedText(ids[:32], len(ids) > 32))
        return rows

    def token_spans(self, text: str, *, add_special_tokens: bool) -> list[TokenSpan]:
        self._enter(text)
        ends = [TokenSpan(0, "[END]", True, None, None)] if add_special_tokens else []
        spans = enumerate(text)
        return [TokenSpan(ord(one), one, False, at, at + 1) for at, one in spans] + ends

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        self._enter("")
        return "".join(chr(one) for one in ids if one or not skip_special_tokens)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        self._enter("")
        return [*map(chr, ids)]

    def _enter(self, text: str) -> None:
        self.calls += 1
        self.threads.add(threading.current_thread().name)
        assert self.gate.wait(PATIENCE_SECONDS)
        if PANIC in (self.everything_becomes or text):
            raise PanicException("index out of bounds")


class FakeEncoder:
    """Embeds by hash. ``gate`` can hold a run, ``entered`` counts runs begun, ``clock`` is moved
    on by an eighth of a second per token."""

    dim = DIM
    max_seq_length = 32
    provider = "FakeExecutionProvider"
    has_block_weights = False

    def __init__(self, clock: Clock | None = None) -> None:
        self.batches: list[list[str]] = []
        self.returns: list[str] = []  # names of the threads that gave memory back
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self._clock = clock

    def run(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
    ) -> NDArray[np.float32]:
        texts = ["".join(map(chr, ids)) for ids in sequences]
        self.batches.append(texts)
        gate = self.gate
        self.entered.release()
        assert gate.wait(PATIENCE_SECONDS)
        if self._clock:
            self._clock.now += 0.125 * sum(map(len, texts))
        letters = set("".join(texts))
        if LETHAL in letters:
            raise SystemExit
        if OUT_OF_MEMORY in letters:
            raise MemoryError
        if POISON in letters:
            raise RuntimeError("poison")
        if MISSHAPEN in letters:
            return np.zeros((len(texts) + 1, DIM), np.float32)
        embeddings = np.array([vector(text, depth) for text in texts], np.float32)
        embeddings[[NOT_A_NUMBER in text for text in texts], 1] = np.nan
        embeddings[[ZERO in text for text in texts]] = 0
        return embeddings

    def block_weights(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
    ) -> NDArray[np.float32]:
        """One block, whose weights are the embedding and one more."""
        return 1 + self.run(sequences, all_threads=all_threads, depth=depth)[:, None]

    def return_memory(self) -> None:
        self.returns.append(threading.current_thread().name)

    def let_one_run(self) -> None:
        """Open the gate for the run that waits at it, and no other."""
        gate, self.gate = self.gate, threading.Event()
        gate.set()

    async def until_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.acquire, timeout=PATIENCE_SECONDS)


class Harness:
    """An engine over fakes, and shorthands for what tests do with it.

    With ``linked``, `start` puts a socket before it: what an HTTP process sees of its engine.
    ``tokenizer`` replaces the fake one; the encoder then is taken as verified.
    """

    linked = False

    def __init__(
        self,
        clock: Clock | None = None,
        artifact: Artifact | None = None,
        tokenizer: TextTokenizer | None = None,
        **settings: Any,
    ) -> None:
        limits = {"max_batch_tokens": 64, "max_batch_texts": 8, "max_queue_tokens": 256}
        limits["concurrent_runs"] = 1
        self.metrics = Metrics()
        self.encoder = FakeEncoder(clock)
        self.tokenizer = FakeTokenizer()
        self.fatal: list[str] = []
        model: Future[LoadedModel] = Future()
        parts = LoadedModel(self.encoder, tokenizer or self.tokenizer, artifact)
        parts.is_verified = tokenizer is not None
        model.set_result(parts)
        self.settings = Settings(**(limits | settings))
        self.clock: Callable[[], float] = clock or time.monotonic
        self.model = parts
        self.engine: Engine | LinkedEngine = Engine(
            self.settings,
            self.metrics,
            model=model,
            on_fatal=self._on_fatal,
            clock=self.clock,
        )

    async def start(self) -> None:
        await self.engine.start()
        if self.linked and isinstance(self.engine, Engine):
            self.engine = await LinkedEngine.of(
                self.engine, self.settings, self.metrics, self.model, clock=self.clock
            )
        self.encoder.batches.clear()  # the warm-up's
        self.encoder.entered = threading.Semaphore(0)
        self.tokenizer.calls = 0

    def _on_fatal(self, reason: str) -> None:
        self.fatal.append(reason)
        if isinstance(self.engine, LinkedEngine):
            self.engine.server.set_state(Readiness(False, reason), failed=True)

    async def embed(self, texts: Sequence[str | Sequence[int]], **options: Any) -> EmbedResult:
        return await self.engine.embed(EmbedRequest(texts, **options))

    async def tokenize(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, **options: Any
    ) -> list[int]:
        """How many tokens each text has."""

        def count(tokenizer: TextTokenizer, text: str) -> int:
            return len(tokenizer.token_spans(text, add_special_tokens=add_special_tokens))

        return await self.engine.apply_tokenizer(count, texts, **options)

    def send(self, *texts: str, **options: Any) -> asyncio.Task[EmbedResult]:
        return asyncio.create_task(self.embed(texts, **options))

    async def hold(self, text: str = "held") -> asyncio.Task[EmbedResult]:
        """Keeps the inference thread busy with one text until ``encoder.gate`` is set."""
        self.encoder.gate.clear()
        self.encoder.entered = threading.Semaphore(0)  # without the runs before this one
        task = self.send(text)
        await self.encoder.until_entered()
        return task

    async def queued(self, texts: int) -> None:
        """Waits until this many texts wait in the queue."""
        await self.until(lambda: self.value("queue_texts") == texts)
        if isinstance(self.engine, LinkedEngine):  # and until the HTTP process can know
            server = self.engine.server
            await self.until(lambda: not server._publishes_soon)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                await asyncio.sleep(0)

    def value(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        samples = [one for family in self.metrics.registry.collect() for one in family.samples]
        values = [
            one.value
            for one in samples
            if one.name == f"s2sent_{name}" and labels.items() <= one.labels.items()
        ]
        assert values, name
        return sum(values)


@asynccontextmanager
async def serving(clock: Clock | None = None, **settings: Any) -> AsyncIterator[Harness]:
    harness = Harness(clock, **settings)
    surprises: list[dict[str, Any]] = []  # exceptions in callbacks are otherwise only logged
    asyncio.get_running_loop().set_exception_handler(lambda _, surprise: surprises.append(surprise))
    await harness.start()
    try:
        yield harness
    finally:
        harness.encoder.gate.set()
        harness.tokenizer.gate.set()
        await harness.engine.drain(PATIENCE_SECONDS)
    assert surprises == []


async def outcome(task: asyncio.Task[Result]) -> Result | ServiceError:
    """What a request got, within the patience of a test."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await task
    except ServiceError as error:
        return error
