"""Deferred calls are made once, in their order, after the delay or when they are asked for."""

import asyncio
import logging

import pytest

from s2sent.service.telemetry.deferred import DELAY_SECONDS, DeferredCalls
from s2sent.service.telemetry.metrics import Metrics


async def test_calls_are_made_together_in_their_order() -> None:
    deferred, made = DeferredCalls(), list[int]()
    deferred.add(made.append, 1)
    deferred.add(made.append, 2)
    assert made == []
    await asyncio.sleep(2 * DELAY_SECONDS)
    assert made == [1, 2]


async def test_calls_that_were_made_are_not_made_again() -> None:
    deferred, made = DeferredCalls(), list[int]()
    deferred.add(made.append, 1)
    deferred.run()
    deferred.add(made.append, 2)
    await asyncio.sleep(2 * DELAY_SECONDS)
    assert made == [1, 2]


async def test_a_call_that_raises_is_logged_and_the_others_are_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """So one bad record does not end the metrics and the log lines of all requests after it."""
    deferred, made = DeferredCalls(), list[int]()
    for first in (1, 10):
        deferred.add(made.append, first)
        deferred.add(made.index, "nothing")
        deferred.add(made.append, first + 1)
        await asyncio.sleep(2 * DELAY_SECONDS)
    assert made == [1, 2, 10, 11]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [type(record.exc_info[1]) for record in errors if record.exc_info] == 2 * [ValueError]


async def test_a_scrape_sees_what_was_deferred() -> None:
    metrics = Metrics()
    metrics.deferred.add(metrics.batch_tokens.observe, 3)
    assert metrics.registry.get_sample_value("s2sent_batch_tokens_sum") == 3
