"""Pmfs of many draws at once."""

import numpy as np
import pytest

from ragbandit.router.storage.rows.draw_bytes import draw_bytes, draw_value, pmf_rows

PMFS = [(0.1 + 0.2, 0.7), (5e-324, 1.0), (0.5, 0.5)]


def made(pmf, *, scores=None) -> bytes:
    raw = draw_bytes(bytes(32), seed=2**64 - 1, pmf=pmf, scores=scores)
    assert raw is not None
    return raw


def test_many_are_read_as_each_is():
    """Every bit of every pmf comes back, whether its draw has scores or not; of no draws there are no pmfs."""
    draws = [made(PMFS[0]), made(PMFS[1], scores=(3.0, -1.0)), made(PMFS[2])]
    assert [tuple(row) for row in pmf_rows(draws, arms=2)] == PMFS == [draw_value(raw).pmf for raw in draws]
    assert pmf_rows([], arms=3).shape == (0, 3)
    assert pmf_rows(draws, arms=2).dtype == np.float64


@pytest.mark.parametrize("raw", [b"", made((1.0,)), made((0.5, 0.25, 0.25)), b"\x09" + bytes(56)], ids=len)
def test_another_number_of_arms_is_refused(raw):
    """A draw over more or fewer arms than are asked for, or of an unknown form, is an error."""
    with pytest.raises(ValueError, match="does not fit"):
        pmf_rows([made(PMFS[0]), raw], arms=2)
