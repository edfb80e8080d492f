"""What each request got when something broke, over real sockets.

The encoder is the real one behind a switchboard that can be told to fail on a marked text, to die,
to answer nonsense or to hold its breath. Every test ends by asking for a known vector.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future

import httpx
import numpy as np
import pytest
import uvicorn
from numpy.typing import NDArray

from s2sent.model.artifact.reader import Artifact
from s2sent.model.runtime.encoder import OnnxEncoder
from s2sent.service.app import create_app
from s2sent.service.engine.engine import Engine
from s2sent.service.engine.inference.model import LoadedModel
from s2sent.service.server import listen
from s2sent.service.settings import Settings
from s2sent.service.telemetry.metrics import Metrics
from tests.support.server_process import LOCAL, running_server
from tests.support.wrapped_encoder import WrappedEncoder

Rows = NDArray[np.float32]
KNOWN = "two happy dogs read books"
POISON, DEADLY, BLANK = "the poison bird", "the deadly bird", "the blank bird"


class Switchboard(WrappedEncoder):
    """The real encoder; fails, dies or answers NaN on marked texts, and waits while closed."""

    def __init__(self, encoder: OnnxEncoder) -> None:
        super().__init__(encoder)
        self._marks = {
            tuple(encoder.tokenizer.tokenize([text])[0].input_ids): text
            for text in (POISON, DEADLY, BLANK)
        }
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.texts_run = 0

    def run(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        all_threads: bool = True,
        depth: int | None = None,
    ) -> Rows:
        self.entered.set()
        self.open.wait(30)
        marks = [self._marks.get(tuple(ids)) for ids in sequences]
        if DEADLY in marks:
            raise SystemExit("told to die")
        if POISON in marks:
            raise RuntimeError("told to fail")
        rows = self._encoder.run(sequences, depth=depth)
        rows[[mark == BLANK for mark in marks]] = np.nan
        self.texts_run += len(sequences)
        return rows


class Stage:
    """A server with a switchboard, and a client of it."""

    def __init__(self, artifact: Artifact, **settings: float) -> None:
        encoder = OnnxEncoder(artifact, intra_op_num_threads=1)
        self.known = encoder.encode([KNOWN])[0]
        self.switchboard = Switchboard(encoder)
        self.metrics = Metrics()
        self.fatal: list[str] = []
        self.settings = Settings(threads=1, **settings)  # type: ignore[arg-type]  # each has its type
        model: Future[LoadedModel] = Future()
        model.set_result(LoadedModel(self.switchboard, encoder.tokenizer, artifact))
        self.engine = Engine(
            self.settings,
            self.metrics,
            model=model,
            on_fatal=self.fatal.append,
        )
        app = create_app(self.settings, engine=self.engine, metrics=self.metrics)
        self.server = uvicorn.Server(uvicorn.Config(app, log_config=None, http="httptools"))
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}",
            **LOCAL,
            timeout=30,
            limits=httpx.Limits(max_connections=200),
        )

    async def embed(self, *texts: str) -> httpx.Response:
        return await self.client.post("/embed", json={"inputs": list(texts)})

    async def assert_serves(self) -> None:
        """The next good answer is there, and it is the right vector."""
        answer = await self.embed(KNOWN)
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(answer.json()[0], self.known, atol=1e-5)

    async def ready(self) -> int:
        return (await self.client.get("/ready")).status_code

    def count(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        samples = [one for family in self.metrics.registry.collect() for one in family.samples]
        return sum(
            one.value
            for one in samples
            if one.name == name and labels.items() <= one.labels.items()
        )

    async def holding(self) -> None:
        """Close the switchboard and put one request into it."""
        self.switchboard.open.clear()
        self.switchboard.entered.clear()
        self.held = asyncio.ensure_future(self.embed(KNOWN))
        await asyncio.to_thread(self.switchboard.entered.wait, 30)

    async def until(self, condition: str, value: float) -> None:
        """Wait for a gauge of the service; the test's own timeout bounds it."""
        while self.count(condition) != value:
            await asyncio.sleep(0.005)


@pytest.fixture
async def stage(tiny_artifact: Artifact, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    stage = Stage(tiny_artifact, **getattr(request, "param", {}))
    serving = asyncio.create_task(stage.server.serve(sockets=[stage.listener]))
    while await stage.ready() != 200:
        await asyncio.sleep(0.005)
    yield stage
    stage.switchboard.open.set()
    await stage.client.aclose()
    stage.server.should_exit = True
    await serving


async def test_a_poisoned_row_fails_its_own_request_and_no_other(stage: Stage) -> None:
    """Forty requests share batches with it: 39 get their vector, one gets 424 without details."""
    await stage.holding()
    asked = [asyncio.ensure_future(stage.embed(KNOWN)) for _ in range(39)]
    poisoned = asyncio.ensure_future(stage.embed("a cat", POISON, "a dog"))
    await stage.until("s2sent_queue_texts", 42)
    stage.switchboard.open.set()
    answers = [(await answer) for answer in [stage.held, *asked]]
    assert [answer.status_code for answer in answers] == [200] * 40
    for answer in answers:
        np.testing.assert_allclose(answer.json()[0], stage.known, atol=1e-5)
    failed = await poisoned
    assert failed.status_code == 424
    assert failed.json()["error_type"] == "Backend"
    assert "told to fail" not in failed.text
    await stage.assert_serves()


async def test_a_vector_that_is_not_finite_never_leaves_as_a_success(stage: Stage) -> None:
    """NaN from the encoder is a 424 for its request, and nothing for the others."""
    answers = await asyncio.gather(stage.embed(BLANK), stage.embed(KNOWN))
    assert [answer.status_code for answer in answers] == [424, 200]
    await stage.assert_serves()


async def test_a_dead_engine_thread_is_replaced(stage: Stage) -> None:
    """The batch it ran gets 503; what waits is served by the next thread; the count goes up."""
    await stage.holding()
    dying = asyncio.ensure_future(stage.embed(DEADLY))
    await stage.until("s2sent_queue_texts", 1)
    stage.switchboard.open.set()
    assert (await stage.held).status_code == 200
    answer = await dying
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    await stage.assert_serves()
    assert await stage.ready() == 200
    assert stage.count("s2sent_engine_restarts_total") == 1


async def test_an_engine_that_keeps_dying_turns_red_and_ends_the_process(stage: Stage) -> None:
    """No request hangs: each death answers, then everything is refused and the owner is told."""
    answers = [(await stage.embed(DEADLY)).status_code for _ in range(5)]
    assert answers == [503] * 5
    assert await stage.ready() == 503
    assert len(stage.fatal) == 1
    assert (await stage.client.get("/health")).status_code == 200


async def test_a_client_that_leaves_costs_no_run(stage: Stage) -> None:
    """Its texts leave the queue when it does, are counted, and are never run."""
    await stage.holding()
    _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    body = b'{"inputs": ["a cat", "a dog", "a bird"]}'
    head = "POST /embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await stage.until("s2sent_queue_texts", 3)
    writer.close()
    await stage.until("s2sent_queue_texts", 0)
    stage.switchboard.open.set()
    assert (await stage.held).status_code == 200
    before = stage.switchboard.texts_run
    await stage.assert_serves()
    assert stage.switchboard.texts_run == before + 1
    assert stage.count("s2sent_requests_cancelled_total", stage="queue") == 1
    assert stage.count("s2sent_requests_total", route="/embed", status="499") == 1


async def test_a_client_that_leaves_during_the_run_disturbs_nobody(stage: Stage) -> None:
    """The run goes on; its result is dropped."""
    await stage.holding()
    stage.held.cancel()
    while stage.count("s2sent_requests_cancelled_total", stage="inference") != 1:
        await asyncio.sleep(0.005)
    stage.switchboard.open.set()
    await stage.assert_serves()


@pytest.mark.parametrize(
    "stage", [{"max_queue_tokens": 64, "max_batch_tokens": 64, "max_batch_texts": 8}], indirect=True
)
async def test_a_full_queue_refuses_at_once_and_loses_nothing(stage: Stage) -> None:
    """While the engine is held most get 429 now; the accepted are served afterwards."""
    await stage.holding()
    asked = [asyncio.ensure_future(stage.embed(KNOWN)) for _ in range(60)]
    while sum(answer.done() for answer in asked) < 40:
        await asyncio.sleep(0.005)
    early = [answer.result() for answer in asked if answer.done()]
    assert {answer.status_code for answer in early} == {429}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in early)
    stage.switchboard.open.set()
    statuses = [(await answer).status_code for answer in asked]
    assert set(statuses) == {200, 429}
    assert stage.count("s2sent_requests_rejected_total", reason="queue_full") == statuses.count(429)
    await stage.assert_serves()


@pytest.mark.parametrize("stage", [{"request_timeout_seconds": 0.2}], indirect=True)
async def test_a_deadline_is_kept_while_the_engine_hangs(stage: Stage) -> None:
    """504 comes from the clock, not from the thread that hangs."""
    await stage.holding()
    waiting = await stage.embed(KNOWN)
    assert (waiting.status_code, (await stage.held).status_code) == (504, 504)
    assert waiting.json()["error_type"] == "Timeout"
    stage.switchboard.open.set()
    await stage.assert_serves()


@pytest.mark.parametrize("stage", [{"stall_timeout_seconds": 0.05}], indirect=True)
async def test_a_run_that_hangs_turns_ready_red(stage: Stage) -> None:
    """And green again when it ends."""
    await stage.holding()
    while await stage.ready() == 200:
        await asyncio.sleep(0.005)
    stage.switchboard.open.set()
    assert (await stage.held).status_code == 200
    assert await stage.ready() == 200


@pytest.mark.usefixtures("each_form")
def test_sigterm_under_load_answers_everything_that_was_accepted(
    tiny_artifact: Artifact,
) -> None:
    """Sixteen clients ask without pause while the process is told to end.

    Each request the server took is answered with 200 or an orderly 503, and the answer arrives.
    A request sent on a connection that is just being closed was never taken (RFC 9112, 9.5).
    """
    answered: list[int] = []

    def ask(url: str) -> None:
        with httpx.Client(base_url=url, **LOCAL, timeout=30) as client:
            while True:
                try:
                    answered.append(client.post("/embed", json={"inputs": [KNOWN] * 5}).status_code)
                except httpx.TransportError:
                    return

    with running_server(tiny_artifact.path) as server:
        clients = [threading.Thread(target=ask, args=(server.url,)) for _ in range(16)]
        for client in clients:
            client.start()
        while len(answered) < 100:
            threading.Event().wait(0.01)
        assert server.stop() == 0
        for client in clients:
            client.join(30)
    taken = [line["status"] for line in server.log if line.get("route") == "/embed"]
    assert set(answered) <= {200, 503}
    assert answered.count(200) >= 100
    assert sorted(taken) == sorted(answered)
