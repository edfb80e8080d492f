"""Deferred calls are made once, in their order, after the delay or when they are asked for."""

import asyncio

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


async def test_a_scrape_sees_what_was_deferred() -> None:
    metrics = Metrics()
    metrics.deferred.add(metrics.batch_tokens.observe, 3)
    assert metrics.registry.get_sample_value("s2sent_batch_tokens_sum") == 3
