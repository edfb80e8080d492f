"""Scrapes share an encoding for a second, so that many of them cost requests nothing."""

import asyncio
import threading
import time
from typing import Any

import pytest

from s2sent.service.api import exposition
from s2sent.service.api.exposition import FRESH_SECONDS, Exposition
from s2sent.service.telemetry.metrics import Metrics
from tests.support.fake_model import Clock

OPENMETRICS = "application/openmetrics-text"


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many encodings ran when each of them began, itself included."""
    begun, running, lock = list[int](), 0, threading.Lock()

    def slow(_registry: object, **_: Any) -> bytes:
        nonlocal running
        with lock:
            running += 1
            begun.append(running)
        time.sleep(0.05)
        running -= 1
        return b"%d" % len(begun)

    monkeypatch.setattr(exposition, "generate_latest", slow)
    monkeypatch.setattr("prometheus_client.openmetrics.exposition.generate_latest", slow)
    return begun


async def test_scrapes_at_one_time_share_one_encoding(encodings: list[int]) -> None:
    page = Exposition(Metrics(), clock=Clock())
    texts = await asyncio.gather(*(page.text("") for _ in range(20)))
    assert {text for text, _ in texts} == {b"1"}
    assert encodings == [1]


async def test_an_encoding_is_good_for_a_second(encodings: list[int]) -> None:
    clock = Clock()
    page = Exposition(Metrics(), clock=clock)
    for now, encoded in ((0.0, 1), (FRESH_SECONDS - 0.01, 1), (FRESH_SECONDS, 2), (9.0, 3)):
        clock.now = now
        assert (await page.text(""))[0] == b"%d" % encoded


async def test_formats_and_versions_are_two_encodings_one_after_the_other(
    encodings: list[int],
) -> None:
    """A client that asks for another version each time gets the same text each time."""
    page = Exposition(Metrics(), clock=Clock())
    versions = [f"{OPENMETRICS};version=1.0.{n};escaping=dots" for n in range(10)]
    plain = [f"text/plain;version=1.0.{n};escaping=values" for n in range(10)]
    answers = await asyncio.gather(*map(page.text, ["", OPENMETRICS, *versions, *plain]))
    assert len({content_type for _, content_type in answers}) == 2
    assert encodings == [1, 1]
