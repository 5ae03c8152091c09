"""The distance between two states of a policy: each row counts by its own length, and rounding near zero does not."""

import numpy as np
import pytest

from ragbandit.router.learning.audit.differences import largest_difference

ROW = np.array([[1.0, 2.0], [0.0, 0.0]])


def moved(row, *, by, dtype=np.float64):
    """ROW with the number `by` added to the beginning of one row."""
    array = ROW.astype(dtype)
    array[row, 0] += by
    return array


def test_what_sums_leave_where_they_cancel_is_rounding():
    """A row that is zero on one processor and 1e-17 on another differs by nothing that a tolerance of 1e-6 sees."""
    assert 0.0 < largest_difference({"sums": ROW}, {"sums": moved(1, by=6.9e-18)}) < 1e-9


@pytest.mark.parametrize(("row", "by", "expected"), [(0, 0.1, 0.0438), (1, 1e-6, 1.0), (1, 1e-9, 0.01)])
def test_a_short_row_is_seen_beside_a_long_one(row, by, expected):
    """A difference counts in its own row, however long the other rows of the array are."""
    assert largest_difference([ROW], [moved(row, by=by)]) == pytest.approx(expected, rel=0.01)


def test_rows_of_float32_count_as_they_are():
    """Squares of small gradients in float32 are compared by their own length."""
    short = moved(1, by=1e-12, dtype=np.float32)
    assert largest_difference((short,), (moved(1, by=1.01e-12, dtype=np.float32),)) == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize(
    "other", [{"sums": ROW[:1]}, {"other": ROW}, {"sums": ROW.astype(np.float32)}, {"sums": 1}, []]
)
def test_other_shapes_and_names_are_infinitely_far(other):
    """States of other names, shapes or types are not compared by numbers."""
    assert largest_difference({"sums": ROW}, other) == float("inf")
