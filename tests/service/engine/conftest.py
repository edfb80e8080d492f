"""The two forms of an engine: in one process, and as an HTTP process sees it."""

import pytest

from tests.support.fake_model import Harness


@pytest.fixture(params=["one-process", "linked"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """In which form the engines of `tests.support.fake_model.serving` run."""
    monkeypatch.setattr(Harness, "linked", request.param == "linked")
    return str(request.param)
