"""An HTTP process and the engine process: what each does when the other is busy, slow or gone."""

import asyncio

import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.service.engine.inference.model import LoadedModel, open_encoder
from s2sent.service.engine.link.board import NUMBERS
from s2sent.service.engine.link.client import RemoteEngine, RemoteModel
from s2sent.service.engine.link.server import HttpProcessConnection, model_payload
from s2sent.service.engine.types import OtherTexts, Readiness
from s2sent.service.errors import DeadlineExceeded, NotReady, Overloaded, QuotaExceeded
from tests.support.fake_model import PATIENCE_SECONDS, Harness, outcome, serving, vector
from tests.support.linked_engine import LinkedEngine, new_board


@pytest.fixture(autouse=True)
def linked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Harness, "linked", True)


def linked_engine(harness: Harness) -> LinkedEngine:
    assert isinstance(harness.engine, LinkedEngine)
    return harness.engine


async def test_texts_of_a_process_that_is_gone_leave_the_queue() -> None:
    async with serving() as harness:
        held = await harness.hold()
        waiting = harness.send("waiting")
        await harness.queued(1)
        linked_engine(harness).near.close()
        await harness.queued(0)
        assert linked_engine(harness).server.connections == {}
        assert [type(await outcome(task)) for task in (held, waiting)] == [NotReady, NotReady]
        harness.encoder.gate.set()
        await harness.until(lambda: harness.encoder.batches == [["held"]])


async def test_a_connection_that_ends_late_leaves_its_successor_alone() -> None:
    async with serving() as harness:
        engine = linked_engine(harness)
        successor = HttpProcessConnection(
            engine.server, 1, on_ready=lambda: None, on_samples=lambda _, asked: None
        )
        engine.server.add(1, successor)
        engine.near.close()
        await harness.until(lambda: engine.far._transport is None)
        assert engine.server.connections == {1: successor}


async def test_without_the_engine_process_every_request_is_answered_503_at_once() -> None:
    async with serving() as harness:
        engine, reasons = linked_engine(harness), harness.fatal
        engine.on_fatal = reasons.append
        held, call = await harness.hold(), asyncio.ensure_future(engine.near.call("?"))
        engine.far.close()
        answers = [await outcome(task) for task in (held, harness.send("late"))]
        assert [type(answer) for answer in answers] == [NotReady, NotReady]
        await asyncio.wait((call,))
        assert reasons == ["the engine process has ended"]
        assert RemoteEngine.readiness(engine).reason == "the engine process has ended"
        with pytest.raises(NotReady):
            await engine.near.call("?")


async def test_a_request_that_does_not_fit_is_refused_by_the_engine_process() -> None:
    async with serving(max_queue_tokens=64) as harness:
        held = await harness.hold()
        waiting = harness.send("a" * 30)
        await harness.queued(1)
        refused = await outcome(harness.send("b" * 20, others=OtherTexts(["c" * 20], None, "")))
        assert isinstance(refused, Overloaded)
        assert "30 interactive tokens are waiting, of 64 that may; this request has 40" in str(
            refused
        )
        assert refused.retry_after_seconds == 1
        assert harness.value("requests_rejected_total", reason="queue_full") == 1
        harness.encoder.gate.set()
        await asyncio.gather(held, waiting)


async def test_a_full_lane_is_known_before_a_text_is_tokenised() -> None:
    async with serving(max_queue_tokens=64) as harness:
        held = await harness.hold()
        waiting = harness.send("a" * 32, "b" * 32)
        board = linked_engine(harness).server.board
        await harness.until(lambda: board.tokens_in("interactive") == 64)
        calls = harness.tokenizer.calls
        assert isinstance(await outcome(harness.send("c")), Overloaded)
        assert harness.tokenizer.calls == calls
        harness.encoder.gate.set()
        await asyncio.gather(held, waiting)


async def test_requests_of_all_processes_count_against_the_limit() -> None:
    async with serving(max_concurrent_requests=3) as harness:
        board = linked_engine(harness).server.board
        board.set_in_flight(0, 2)  # of another process
        held = await harness.hold()
        assert board.in_flight == 3
        assert isinstance(await outcome(harness.send("one too many")), Overloaded)
        board.set_in_flight(0, 0)
        harness.encoder.gate.set()
        await asyncio.gather(held, harness.send("a"))
        assert board.in_flight == 0


async def test_a_deadline_names_the_stage_that_the_engine_process_knows() -> None:
    async with serving() as harness:
        held = await harness.hold()
        late = await outcome(harness.send("queued", timeout_seconds=0.05))
        assert isinstance(late, DeadlineExceeded)
        assert "in the stage queue" in str(late)
        harness.encoder.gate.set()
        await held
        harness.encoder.gate.clear()
        late = await outcome(harness.send("run", timeout_seconds=0.05))
        assert isinstance(late, DeadlineExceeded)
        assert "in the stage inference" in str(late)
        harness.encoder.gate.set()


async def test_questions_have_answers_and_refusals() -> None:
    async with serving() as harness:
        engine = linked_engine(harness)
        assert await engine.near.call({"a": 1}) == {"a": 1}

        async def refuse(_: object) -> None:
            raise QuotaExceeded("used up", retry_after_seconds=4)

        engine.server.answer = refuse
        with pytest.raises(QuotaExceeded, match="used up") as refusal:
            await engine.near.call({})
        assert refusal.value.retry_after_seconds == 4


async def test_readiness_is_that_of_the_whole_service() -> None:
    async with serving() as harness:
        engine = linked_engine(harness)
        for readiness in (Readiness(True, "ready"), Readiness(False, "HTTP process 2 is missing")):
            engine.server.set_state(readiness)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while RemoteEngine.readiness(engine) != readiness:
                    await asyncio.sleep(0)
        assert (await outcome(harness.send("a"))).embeddings.tolist() == [vector("a")]  # type: ignore[union-attr]


async def test_numbers_may_come_round() -> None:
    board = new_board(2)
    board.set_started(1, 5, True)
    assert board.has_started(1, 5 + NUMBERS)
    assert not board.has_started(0, 5)


def test_an_http_process_knows_the_model_by_what_it_is_told(tiny_artifact: Artifact) -> None:
    encoder = open_encoder(tiny_artifact)
    served = LoadedModel(encoder, encoder.tokenizer, tiny_artifact)
    known = RemoteModel.of(model_payload(tiny_artifact, served))
    assert known.artifact.manifest == tiny_artifact.manifest
    assert known.artifact.fingerprint == tiny_artifact.fingerprint
    assert (known.provider, known.has_block_weights) == (served.provider, served.has_block_weights)
    for depth in (None, *tiny_artifact.manifest.depths):
        for weights in (False, True):
            lengths = {one.row_length(depth, weights=weights) for one in (known, served)}
            assert len(lengths) == 1
    text = "A man is playing a guitar."
    assert known.tokenizer.tokenize([text]) == served.tokenizer.tokenize([text])


async def test_a_process_reports_at_once_and_when_asked() -> None:
    async with serving() as harness:
        engine, reports = linked_engine(harness), list[tuple[bytes, bool]]()
        engine.far._on_samples = lambda *report: reports.append(report)
        assert engine.server.collect() == [1]
        await harness.until(lambda: bool(reports))
        assert reports[0] == (b"[]", True)
