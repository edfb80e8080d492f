"""Process-wide tuning: what it sets, and that nothing else sets it."""

import asyncio
import gc
import os
from collections.abc import Iterator

import pytest

from s2sent.model.artifact.reader import Artifact
from s2sent.service.app import create_app
from s2sent.service.process import GARBAGE_THRESHOLDS, tune_process
from s2sent.service.settings import Settings


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector's thresholds are put back after the test."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("collector")
def test_the_collector_runs_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    tune_process()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert gc.get_threshold() == GARBAGE_THRESHOLDS


@pytest.mark.usefixtures("collector")
def test_what_the_environment_says_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    tune_process()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "2"


async def test_an_application_within_another_program_tunes_nothing(
    tiny_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> tuple[object, ...]:
        return gc.get_threshold(), dict(os.environ)

    before = state()
    app = create_app(Settings(artifact=tiny_artifact.path, threads=1))
    async with app.router.lifespan_context(app):
        while not app.state.service.engine.readiness().ready:
            await asyncio.sleep(0.01)
        assert state() == before
