"""Requests in flight are counted, and end at their deadline or all at once."""

import asyncio

import pytest

from s2sent.service.engine.deadlines import InFlightRequests
from s2sent.service.errors import DeadlineExceeded, NotReady
from s2sent.service.telemetry.metrics import Metrics


async def stay(in_flight: InFlightRequests, seconds: float) -> None:
    async with in_flight.track(seconds, stage=lambda: "queue"):
        await asyncio.Event().wait()


async def test_request_ends_at_its_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match="the stage queue; request_timeout_seconds is 60"):
        await stay(InFlightRequests(Metrics(), 60), 0.0)


async def test_all_can_be_ended_at_once_also_those_whose_deadline_is_this_moment() -> None:
    in_flight = InFlightRequests(Metrics(), 60)
    tasks = [asyncio.create_task(stay(in_flight, seconds)) for seconds in (0.0, 1_000.0)]
    while not in_flight:
        await asyncio.sleep(0)
    await asyncio.sleep(0)  # the timer of the first has fired, its task has not run yet
    in_flight.abort(lambda: NotReady("The end."))
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [NotReady, NotReady]
    assert len(in_flight) == 0


async def test_a_request_that_goes_from_one_scope_to_the_next_is_waited_for() -> None:
    in_flight = InFlightRequests(Metrics(), 60)

    async def two_steps() -> None:
        for _ in range(2):
            async with in_flight.track(1_000, stage=lambda: "queue"):
                await asyncio.sleep(0.05)

    task = asyncio.create_task(two_steps())
    await asyncio.sleep(0)
    assert await in_flight.is_idle_within(10)
    await asyncio.wait_for(task, 0.01)


async def test_idle_is_noticed_when_the_last_one_leaves() -> None:
    in_flight = InFlightRequests(Metrics(), 60)
    assert await in_flight.is_idle_within(0)
    task = asyncio.create_task(stay(in_flight, 1_000))
    await asyncio.sleep(0)
    assert not await in_flight.is_idle_within(0)
    task.cancel()
    assert await in_flight.is_idle_within(10)
