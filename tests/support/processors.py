"""Marks of tests that need instructions which not every processor has."""

import pytest

from model.runtime.providers import multiplies_int8

needs_int8 = pytest.mark.skipif(
    not multiplies_int8(), reason="this processor's products of int8 overflow"
)
INT8 = pytest.param("int8", marks=needs_int8)  # a precision among others
