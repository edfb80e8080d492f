"""What tests of the HTTP layer share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def collector() -> Iterator[None]:
    """Garbage is collected on demand alone, and all there was before is gone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
