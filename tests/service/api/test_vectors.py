"""Truncating, normalising and comparing embeddings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from s2sent.service.api.vectors import (
    paired_cosines,
    ranked_cosines,
    to_unit,
    truncate_and_normalize,
)
from s2sent.service.errors import InferenceFailed

MATRICES = npst.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    elements=st.floats(0.125, 2.0**100, width=32),  # up to where a float32 square overflows
)


@given(rows=MATRICES)
def test_every_finished_row_has_length_one(rows: np.ndarray) -> None:
    finished = truncate_and_normalize(rows, dimensions=None, normalize=True)
    assert finished.dtype == np.float32
    assert finished.flags.c_contiguous
    np.testing.assert_allclose(np.linalg.norm(finished, axis=1), 1, atol=1e-6)


@given(rows=MATRICES, data=st.data())
def test_cutting_comes_before_normalising(rows: np.ndarray, data: st.DataObject) -> None:
    dimensions = data.draw(st.integers(1, rows.shape[1]))
    cut = truncate_and_normalize(rows, dimensions=dimensions, normalize=True)
    again = truncate_and_normalize(rows[:, :dimensions].copy(), dimensions=None, normalize=True)
    assert np.array_equal(cut, again)


@pytest.mark.parametrize("normalize", [True, False])
def test_components_that_are_cut_off_are_not_looked_at(normalize: bool) -> None:
    rows = np.ones((3, 8), np.float32)
    rows[:, 5:] = np.nan
    finished = truncate_and_normalize(rows, dimensions=5, normalize=normalize)
    assert finished.nbytes == 3 * 5 * 4
    assert np.isfinite(finished).all()


@given(rows=MATRICES)
def test_rows_that_are_not_normalised_are_untouched(rows: np.ndarray) -> None:
    assert np.array_equal(truncate_and_normalize(rows, dimensions=None, normalize=False), rows)


@pytest.mark.parametrize("value", [0, np.nan, np.inf, -np.inf])
def test_a_row_without_direction_is_named(value: float) -> None:
    rows = np.ones((3, 4), np.float32)
    rows[2] = value
    with pytest.raises(InferenceFailed, match="input 2"):
        truncate_and_normalize(rows, dimensions=2, normalize=True)
    with pytest.raises(InferenceFailed, match="input 2"):
        to_unit(rows)


@given(rows=MATRICES)
def test_cosine_is_symmetric_and_within_bounds(rows: np.ndarray) -> None:
    unit = to_unit(rows)
    count = len(rows)
    left, right = np.meshgrid(range(count), range(count))
    there = paired_cosines(unit, left.ravel().tolist(), right.ravel().tolist())
    back = paired_cosines(unit, right.ravel().tolist(), left.ravel().tolist())
    assert np.array_equal(there, back)
    assert np.all(np.abs(there) <= 1)


@given(rows=MATRICES, data=st.data())
def test_ranking_is_the_stable_order_of_the_cosines(rows: np.ndarray, data: st.DataObject) -> None:
    unit = to_unit(rows)
    drawn = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=12))
    documents = np.array(drawn)
    best, scores = ranked_cosines(unit, 0, documents, None)
    assert sorted(best.tolist()) == list(range(len(drawn)))
    order = list(zip((-scores).tolist(), best.tolist(), strict=True))
    assert order == sorted(order)  # best first, and equal scores by position
    first_two, _ = ranked_cosines(unit, 0, documents, 2)
    assert np.array_equal(first_two, best[:2])
