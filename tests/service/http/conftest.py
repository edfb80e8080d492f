"""What tests of the HTTP layer share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def collector() -> Iterator[None]:
    """Garbage is collected on demand alone, and only what the test makes is looked through."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
