"""Moments of pieces, merged, are the moments of the whole."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from ragbandit.router.comparison.intervals import Moments

NUMBERS = st.floats(-1e3, 1e3, allow_subnormal=False)


def tables(*, least=0):
    """Rows of three columns."""
    return st.integers(least, 30).flatmap(lambda rows: arrays(np.float64, (rows, 3), elements=NUMBERS))


def close(one, other):
    """The moments are equal up to rounding, in units of the largest square."""
    assert one.rows == other.rows
    assert one.mean == pytest.approx(other.mean, abs=1e-9)
    assert one.scatter == pytest.approx(other.scatter, abs=1e-6)


@given(tables(), st.lists(st.integers(0, 30), max_size=4))
def test_merged_is_whole(table, cuts):
    """Wherever a log is cut, also into empty pieces, its merged moments are those of the whole."""
    pieces = np.split(table, sorted(min(cut, len(table)) for cut in cuts))
    merged = Moments.of(*pieces[0].T)
    for piece in pieces[1:]:
        merged = merged.merged(Moments.of(*piece.T))
    close(merged, Moments.of(*table.T))


def test_small_scatter_beside_a_large_mean():
    """A spread of 1e-3 around 1e6 is not lost, in one piece or in many: no sum of squares is subtracted."""
    values = 1e6 + 1e-3 * np.random.default_rng(0).standard_normal(10_000)
    merged = Moments.of(values[:0])
    for piece in np.split(values, 100):
        merged = merged.merged(Moments.of(piece))
    for moments in (merged, Moments.of(values)):
        assert moments.scatter[0, 0] / 9_999 == pytest.approx(1e-6, rel=0.05)
