"""The process: an orderly end after a signal, and a prompt one after a fatal error."""

import asyncio
import os
import signal
import socket
import threading
import weakref
from typing import Any

import httpx
import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.service.engine.types import EmbedResult
from s2sent.service.lanes import LANES, Lane
from s2sent.service.server import CannotListen, listen
from tests.support.fake_engine import FakeEngine
from tests.support.fake_model import FakeTokenizer, Harness
from tests.support.running_process import Running


async def test_after_sigterm_accepted_work_is_finished_and_new_work_refused() -> None:
    engine = FakeEngine(gate=asyncio.Event())
    running = Running(engine)
    accepted = asyncio.ensure_future(running.client.post("/embed", json={"inputs": "a"}))
    await engine.entered.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await engine.draining.wait()
    ready, alive = await running.client.get("/ready"), await running.client.get("/health")
    refused = await running.client.post("/embed", json={"inputs": "b"})
    assert (ready.status_code, alive.status_code, refused.status_code) == (503, 200, 503)
    assert {answer.headers["connection"] for answer in (ready, alive, refused)} == {"close"}
    assert "retry-after" in refused.headers
    assert engine.gate is not None
    engine.gate.set()
    assert (await accepted).status_code == 200
    assert await running.stopped() == 0


async def test_an_answer_that_is_being_written_at_sigterm_is_finished_and_closes() -> None:
    engine = FakeEngine(writing_gate=asyncio.Event())
    running = Running(engine)
    accepted = asyncio.ensure_future(running.client.post("/embed", json={"inputs": ["a"] * 65}))
    await engine.entered.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await engine.draining.wait()
    assert engine.writing_gate is not None
    engine.writing_gate.set()
    answer = await accepted
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")
    assert await running.stopped() == 0


async def test_a_request_whose_body_never_ends_is_told_that_the_server_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("s2sent.service.server.SEND_TIMEOUT_SECONDS", 0.05)
    running = Running(FakeEngine())
    url = running.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = "POST /embed HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: 9\r\n\r\n{{".encode())
    while not (await running.client.get("/metrics")).text.count("s2sent_requests_in_flight 2.0"):
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    answer = (await reader.read()).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 503 ")
    assert "connection: close" in answer.lower()
    assert "retry-after" in answer.lower()
    assert await running.stopped() == 0


async def test_work_that_cannot_be_finished_shows_in_the_exit_code() -> None:
    engine = FakeEngine(drains_cleanly=False)
    running = Running(engine, drain_timeout_seconds=3)
    await running.client.get("/health")
    os.kill(os.getpid(), signal.SIGINT)
    assert await running.stopped() == 1
    assert engine.drained_within == 3


async def test_a_second_signal_does_not_wait() -> None:
    engine = FakeEngine(gate=asyncio.Event())
    running = Running(engine)
    waiting = asyncio.ensure_future(running.client.post("/embed", json={"inputs": "a"}))
    await engine.entered.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await engine.draining.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await running.task
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert await running.stopped() == 1


async def test_an_idle_connection_stays_open_as_long_as_it_is_set() -> None:
    running = Running(FakeEngine(), keep_alive_seconds=1)
    url = running.client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    began = asyncio.get_running_loop().time()
    assert await reader.read() == b""
    assert asyncio.get_running_loop().time() - began >= 0.9
    writer.close()
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running.stopped() == 0


async def test_an_idle_connection_keeps_no_result() -> None:
    """A client may leave many of them open."""
    engine = FakeEngine()
    embed, results = engine.embed, list[weakref.ref[Any]]()

    async def watched(*arguments: Any, **options: Any) -> EmbedResult:
        result = await embed(*arguments, **options)
        results.append(weakref.ref(result.embeddings))
        return result

    engine.embed = watched  # type: ignore[method-assign]
    running = Running(engine)
    for body in ({"inputs": ["a"] * 100}, {"inputs": ["a"] * 100, "normalize": False}):
        assert (await running.client.post("/embed", json=body)).status_code == 200
    async with asyncio.timeout(20):
        while any(result() is not None for result in results):
            await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running.stopped() == 0


async def test_a_failed_start_ends_the_process_with_1() -> None:
    running = Running(FakeEngine(start_error=RuntimeError("broken")))
    assert await running.stopped() == 1


@pytest.mark.parametrize("lane", LANES)
async def test_a_short_request_overtakes_eight_long_ones_of_its_lane_on_the_wire(
    lane: Lane, tiny_artifact: Artifact
) -> None:
    harness = Harness(artifact=tiny_artifact, tokenizer=FakeTokenizer(), max_queue_tokens=100_000)
    running = Running(harness.engine)
    await harness.until(lambda: harness.engine.readiness().ready)
    harness.encoder.batches.clear()
    harness.encoder.gate.clear()

    def post(texts: list[str]) -> asyncio.Future[httpx.Response]:
        answer = running.client.post(
            "/embed", json={"inputs": texts}, headers={"x-priority": lane}, timeout=60
        )
        return asyncio.ensure_future(answer)

    long = [post(["bulky"] * 256) for _ in range(8)]
    await harness.queued(8 * 256 - 8)
    short = post(["small"])
    await harness.queued(8 * 256 - 8 + 1)
    harness.encoder.gate.set()
    answers = await asyncio.gather(short, *long)
    assert {answer.status_code for answer in answers} == {200}
    assert any("small" in batch for batch in harness.encoder.batches[:3])
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running.stopped() == 0


def test_an_address_in_use_is_one_sentence_with_the_cure() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            CannotListen,
            match=f"127.0.0.1:{port}: it is taken.*--port 9000.* PORT=9000",
        ):
            listen("127.0.0.1", port)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
@pytest.mark.parametrize(("host", "met"), [("::", ["::1", "127.0.0.1"]), ("::1", ["::1"])])
def test_two_colons_listen_for_ipv6_and_ipv4(host: str, met: list[str]) -> None:
    with listen(host, 0) as listener:
        for address in met:
            socket.create_connection((address, listener.getsockname()[1])).close()


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.1", "this machine does not have it"),  # an address of no machine (RFC 5737)
        (f"{'a' * 64}.com", "no address has this name"),  # it is too long
        ("a b", "no address has this name"),
    ],
)
def test_an_unusable_host_is_one_sentence(host: str, reason: str) -> None:
    with pytest.raises(CannotListen, match=f"^Cannot listen on {host}:0: {reason}. Set another"):
        listen(host, 0)


@pytest.mark.parametrize("long_requests", [1, 2, 4, 8])
async def test_a_short_request_on_the_wire_waits_for_a_text_or_two_of_each_long_one(
    long_requests: int, tiny_artifact: Artifact
) -> None:
    harness = Harness(
        artifact=tiny_artifact, tokenizer=FakeTokenizer(), max_queue_tokens=100_000, threads=1
    )
    running = Running(harness.engine, max_client_batch_size=1_000)
    await harness.until(lambda: harness.engine.readiness().ready)
    harness.encoder.entered = threading.Semaphore(0)  # without the warm-up
    held = await harness.hold()

    def post(texts: list[str]) -> asyncio.Task[httpx.Response]:
        body = {"inputs": texts}
        return asyncio.create_task(
            running.client.post("/embed", json=body, headers={"x-priority": "bulk"}, timeout=60)
        )

    long = [post([f"long {one} {text:03}" for text in range(200)]) for one in range(long_requests)]
    await harness.queued(200 * long_requests)
    for _ in range(5):  # the long ones are under way
        harness.encoder.let_one_run()
        await harness.encoder.until_entered()
    waiting = int(harness.value("queue_texts"))
    short = post(["short text"])
    await harness.queued(waiting + 1)
    begun = len(harness.encoder.batches)
    harness.encoder.gate.set()
    answers = await asyncio.gather(short, *long)
    assert [answer.status_code for answer in answers] == [200] * (1 + long_requests)
    await held
    at = next(at for at, batch in enumerate(harness.encoder.batches) if "short text" in batch)
    assert sum(map(len, harness.encoder.batches[begun:at])) <= 2 * 8
    running.process.stop()
    assert await running.stopped() == 0
