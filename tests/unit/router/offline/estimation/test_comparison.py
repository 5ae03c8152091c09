"""The verdict that follows from the interval of a difference."""

import math

import pytest

from ragbandit.router.offline.estimation import corrected, rows_needed, verdict


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        ((0.01, 0.2), "better"),
        ((-0.2, -0.01), "worse"),
        ((-0.1, 0.1), "cannot tell"),
        ((0.0, 0.0), "cannot tell"),
        ((-math.inf, math.inf), "cannot tell"),
        ((math.nan, math.nan), "cannot tell"),
    ],
)
def test_verdict(interval, said):
    """The verdict is "better" or "worse" if the whole interval is on one side of 0, else "cannot tell"."""
    assert verdict(interval) == said


def test_rows_needed_by_hand():
    """A lead of .1 with .2 below it needs four times the rows, however far away that is."""
    assert rows_needed((-0.1, 0.3), value=0.1, rows=1000) == 4000
    assert rows_needed((-0.5, 0.1), value=-0.1, rows=1000) == 4000
    assert rows_needed((-0.75, 1.0), value=0.25, rows=10**9) == 16 * 10**9


@pytest.mark.parametrize("value", [0.0, math.nan, 5e-324])
def test_rows_needed_of_no_difference(value):
    """No number of rows is forecast for a difference of 0 or an unknown one."""
    assert rows_needed((-0.1, 0.1), value=value, rows=1000) is None


def test_corrected():
    """Five comparisons with a joint confidence of 95 % use 99 % each; a single one uses 95 %."""
    assert corrected(0.95, comparisons=5) == pytest.approx(0.99)
    assert corrected(0.95, comparisons=1) == pytest.approx(0.95)
