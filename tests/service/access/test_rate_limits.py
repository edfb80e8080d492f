"""Rate limits: a minute's allowance at once, an even refill, tokens charged after the run."""

from typing import Any

import pytest

from s2sent.service.access.api_keys import Key, digest_of
from s2sent.service.access.rate_limits import RateLimiter, TokenBucket
from s2sent.service.errors import QuotaExceeded
from s2sent.service.telemetry.metrics import Metrics
from tests.service.access.test_api_keys import Clock


def a_key(name: str = "alice", **limits: Any) -> Key:
    return Key(digest_of(name), name, **limits)


async def refused(limiter: RateLimiter, key: Key) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as caught:
        await limiter.admit(key)
    return caught.value


def test_a_bucket_holds_a_minutes_worth_and_fills_evenly() -> None:
    clock = Clock()
    bucket = TokenBucket(60, clock)
    clock.seconds += 3600
    bucket.take(60)
    assert bucket.seconds_until(1) == 1
    clock.seconds += 0.5
    assert bucket.seconds_until(1) == 0.5
    clock.seconds += 0.5
    assert bucket.seconds_until(1) == 0


async def test_requests_are_let_in_up_to_the_limit_and_then_one_by_one() -> None:
    clock, key = Clock(), a_key(requests_per_minute=3)
    limiter = RateLimiter(Metrics(), clock=clock)
    for _ in range(3):
        await limiter.admit(key)
    error = await refused(limiter, key)
    assert error.retry_after_seconds == 20
    assert error.message == (
        "The key alice has used up its limit of 3 requests per minute."
        " Send the request again in 20 s."
    )
    clock.seconds += 20
    await limiter.admit(key)
    assert (await refused(limiter, key)).retry_after_seconds == 20


async def test_a_refused_request_costs_nothing() -> None:
    clock, key = Clock(), a_key(requests_per_minute=1)
    limiter = RateLimiter(Metrics(), clock=clock)
    await limiter.admit(key)
    for _ in range(5):
        await refused(limiter, key)
    clock.seconds += 60
    await limiter.admit(key)


async def test_tokens_are_charged_afterwards_and_a_debt_is_waited_for() -> None:
    """A request is never cut: the one that overdraws is answered, the next one waits."""
    clock, key = Clock(), a_key(tokens_per_minute=60)
    limiter = RateLimiter(Metrics(), clock=clock)
    await limiter.admit(key)
    await limiter.charge(key, 90)
    error = await refused(limiter, key)
    assert error.retry_after_seconds == 30
    assert "its limit of 60 tokens per minute" in error.message
    clock.seconds += 30
    await limiter.admit(key)


async def test_a_key_of_which_all_tokens_are_used_waits_for_none() -> None:
    """Only a debt refuses: at 0 the next request is the one that overdraws."""
    limiter, key = RateLimiter(Metrics(), clock=Clock()), a_key(tokens_per_minute=60)
    await limiter.charge(key, 60)
    await limiter.admit(key)


async def test_what_one_limit_refuses_the_other_is_not_charged_for() -> None:
    clock, key = Clock(), a_key(requests_per_minute=1, tokens_per_minute=60)
    limiter = RateLimiter(Metrics(), clock=clock)
    await limiter.charge(key, 61)
    await refused(limiter, key)
    clock.seconds += 1
    await limiter.admit(key)


async def test_a_wait_is_told_in_whole_seconds_of_which_there_is_one_at_least() -> None:
    limiter, key = RateLimiter(Metrics(), clock=Clock()), a_key(tokens_per_minute=6000)
    await limiter.charge(key, 6001)
    assert (await refused(limiter, key)).retry_after_seconds == 1
    await limiter.charge(key, 149)  # 1.5 s in all
    assert (await refused(limiter, key)).retry_after_seconds == 2


async def test_keys_do_not_share_and_some_have_no_limit() -> None:
    limiter = RateLimiter(Metrics(), clock=Clock())
    await limiter.admit(a_key("alice", requests_per_minute=1))
    await limiter.admit(a_key("bob", requests_per_minute=1))
    for _ in range(100):
        await limiter.admit(a_key("carol"))
        await limiter.charge(a_key("carol"), 1_000_000)
    await refused(limiter, a_key("alice", requests_per_minute=1))


async def test_a_key_whose_limit_was_changed_begins_anew() -> None:
    limiter = RateLimiter(Metrics(), clock=Clock())
    await limiter.admit(a_key(requests_per_minute=1))
    await limiter.admit(a_key(requests_per_minute=2))
    await refused(limiter, a_key(requests_per_minute=1))


async def test_what_is_refused_is_counted() -> None:
    metrics, key = Metrics(), a_key(requests_per_minute=1)
    limiter = RateLimiter(metrics, clock=Clock())
    await limiter.admit(key)
    await refused(limiter, key)
    value = metrics.registry.get_sample_value
    assert value("s2sent_requests_rejected_total", {"reason": "quota"}) == 1
