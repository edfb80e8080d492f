"""Tests of the benchmarks do not wait for a quiet machine, nor for memory at rest."""

import pytest

from benchmarks import rounds
from benchmarks.load import idle
from benchmarks.systems import raw_limit


@pytest.fixture(autouse=True)
def _do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "REST_SECONDS", 0)
    monkeypatch.setattr(raw_limit, "TRIAL_SECONDS", 0.02)


@pytest.fixture
def any_machine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow a lone request is: other programs may take the cores."""
    monkeypatch.setattr(idle, "SLACK_MS", 1e5)
