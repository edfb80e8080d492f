"""Threads are started at the start; where the system starts none, a sentence says so."""

import io
import logging
import threading
from typing import Any

import httpx
import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.service.__main__ import main
from s2sent.service.engine.inference import workers
from s2sent.service.engine.tokenization import INLINE_CHARACTERS
from s2sent.service.errors import NotReady
from s2sent.service.http.body import INLINE_BYTES
from s2sent.service.telemetry.logs import logging_to
from s2sent.service.threads import NoMoreThreads, pool_of
from tests.support.fake_model import (
    LETHAL,
    FakeTokenizer,
    Harness,
    PanicException,
    outcome,
    serving,
)
from tests.support.running_process import Running


class Limit:
    """While ``reached``, the system starts no thread, or none of this name, and counts tries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = False
        self.name = ""
        self.tries = 0
        start = threading.Thread.start

        def limited(thread: threading.Thread) -> None:
            if self.reached and self.name in thread.name:
                self.tries += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    return Limit(monkeypatch)


def test_the_threads_of_a_pool_run_before_there_is_work() -> None:
    before = threading.active_count()
    pool = pool_of(3, "work")
    assert threading.active_count() == before + 3
    names = {name for name in (one.name for one in threading.enumerate()) if "work_" in name}
    assert len(names) == 3
    pool.shutdown()


def test_a_pool_under_a_limit_is_a_sentence_and_leaves_no_thread(limit: Limit) -> None:
    before = threading.active_count()
    limit.reached, limit.name = True, "work_1"
    with pytest.raises(NoMoreThreads, match="thread 'work' .* Raise the limit of processes"):
        pool_of(3, "work")
    while threading.active_count() > before:
        pass


async def test_a_limit_that_is_reached_after_the_start_fails_no_request(
    limit: Limit, tiny_artifact: Artifact
) -> None:
    """Texts and bodies so long that threads work on them, and the metrics."""
    harness = Harness(artifact=tiny_artifact, tokenizer=FakeTokenizer(), threads=4)
    running = Running(harness.engine)
    await harness.until(lambda: harness.engine.readiness().ready)
    limit.reached = True
    text = "x" * max(INLINE_CHARACTERS, INLINE_BYTES)
    answers: list[httpx.Response] = [
        await running.client.post("/embed", json={"inputs": [text] * 2}),
        await running.client.post("/tokenize", json={"inputs": text[: 2 * INLINE_CHARACTERS]}),
        await running.client.get("/metrics"),
    ]
    limit.reached = False
    assert [answer.status_code for answer in answers] == [200] * 3
    running.process.stop()
    assert await running.stopped() == 0


async def test_an_inference_thread_that_cannot_be_replaced_at_once_is_replaced_later(
    limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "RESTART_SECONDS", 0.001)
    limit.name = "inference"
    async with serving() as harness:
        limit.reached = True
        assert isinstance(await outcome(harness.send(LETHAL)), NotReady)
        await harness.until(lambda: limit.tries == 2)
        limit.reached = False
        await harness.until(lambda: harness.engine.readiness().ready)
        assert (await harness.embed(["a"])).tokens == [1]
        assert harness.fatal == []


async def test_an_inference_thread_that_cannot_be_replaced_at_all_ends_the_process(
    limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "RESTART_SECONDS", 0.001)
    limit.name = "inference"
    async with serving() as harness:
        limit.reached = True
        assert isinstance(await outcome(harness.send(LETHAL)), NotReady)
        await harness.until(lambda: bool(harness.fatal))
        assert limit.tries == workers.MAX_RESTARTS
        assert "is not replaced: The system does not start the thread" in harness.fatal[0]
        assert isinstance(await outcome(harness.send("late")), NotReady)


async def test_a_tokenizer_whose_library_starts_no_threads_is_a_sentence() -> None:
    class Panicking(FakeTokenizer):
        def tokenize(self, texts: Any, **options: Any) -> Any:
            raise PanicException("the pool has not been initialized: ThreadPoolBuildError")

    harness = Harness(tokenizer=Panicking())
    with pytest.raises(NoMoreThreads, match="'tokenizers'"):
        await harness.start()
    assert harness.engine.readiness().reason == "engine could not start"


@pytest.mark.parametrize("name", ["warm-up", "inference"])
async def test_a_limit_while_the_engine_starts_is_a_sentence(limit: Limit, name: str) -> None:
    harness = Harness()
    limit.reached, limit.name = True, name
    with pytest.raises(NoMoreThreads, match=f"'{name}'"):
        await harness.start()
    assert harness.engine.readiness().reason == "engine could not start"


@pytest.mark.parametrize("name", ["monitor", "open", "load", "tokenize", "read-body", "metrics"])
def test_a_limit_while_the_process_starts_is_a_sentence(
    limit: Limit,
    name: str,
    tiny_artifact: Artifact,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(code: int) -> Any:
        raise SystemExit(code)

    monkeypatch.setattr("s2sent.service.__main__.end_process", end)
    monkeypatch.setattr("s2sent.service.__main__.tune_process", lambda: None)
    limit.reached, limit.name = True, name
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--artifact", str(tiny_artifact.path), "--port", "0"])
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("The system does not start the thread")
    assert error.count("\n") == 1


def test_a_log_whose_thread_does_not_start_leaves_nothing_behind(limit: Limit) -> None:
    handlers = list(logging.getLogger().handlers)
    limit.reached = True
    with pytest.raises(NoMoreThreads), logging_to(io.StringIO(), "info"):
        pass
    assert logging.getLogger().handlers == handlers
