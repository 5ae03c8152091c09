"""What an interval of a difference says."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidInput
from router.evaluation.comparison import corrected, rows_needed, verdict


@pytest.mark.parametrize(
    ("interval", "margin", "said"),
    [
        ((0.01, 0.2), 0.0, "better"),
        ((-0.2, -0.01), 0.0, "worse"),
        ((-0.1, 0.1), 0.0, "cannot tell"),
        ((0.0, 0.0), 0.0, "cannot tell"),
        ((0.01, 0.2), 0.05, "cannot tell"),
        ((0.06, 0.2), 0.05, "better"),
        ((-math.inf, math.inf), 0.0, "cannot tell"),
        ((math.nan, math.nan), 0.0, "cannot tell"),
    ],
)
def test_verdict(interval, margin, said):
    """Better or worse where the whole interval lies beyond the margin, else nobody can tell."""
    assert verdict(interval, margin=margin) == said


def test_rows_needed_by_hand():
    """A lead of .1 with .2 below it needs four times the rows; beyond a margin of .05, sixteen times."""
    assert rows_needed((-0.1, 0.3), value=0.1, rows=1000) == 4000
    assert rows_needed((-0.1, 0.3), value=0.1, rows=1000, margin=0.05) == 16_000
    assert rows_needed((-0.5, 0.1), value=-0.1, rows=1000) == 4000


@pytest.mark.parametrize("value", [0.0, 0.04, math.nan])
def test_rows_needed_of_no_difference(value):
    """No number of rows tells a difference that is none, lies within the margin or is not known."""
    assert rows_needed((-0.1, 0.1), value=value, rows=1000, margin=0.05) is None


def test_rows_needed_where_there_is_nothing_to_promise():
    """Nothing is promised of what is settled, of an endless interval, and of more than a billion rows."""
    assert rows_needed((0.1, 0.3), value=0.2, rows=1000) is None
    assert rows_needed((-math.inf, math.inf), value=0.2, rows=1000) is None
    assert rows_needed((-1.0, 1.0), value=1e-4, rows=1000) is None


@given(value=st.floats(0.01, 1), side=st.floats(0.011, 2), rows=st.integers(1, 5000), margin=st.floats(0, 0.005))
def test_rows_needed_settles(value, side, rows, margin):
    """With so many rows the shrunk interval passes the margin, to rounding, and with one less it does not."""
    interval = value - side, value + side
    needed = rows_needed(interval, value=value, rows=rows, margin=margin)
    if verdict(interval, margin=margin) == "better":
        assert needed is None
    else:
        assert value - side * math.sqrt(rows / needed) >= margin - 1e-9
        assert needed == 1 or value - side * math.sqrt(rows / (needed - 1)) <= margin + 1e-9


def test_corrected():
    """Five comparisons at 95 % together take 99 % each; one takes what is asked."""
    assert corrected(0.95, comparisons=5) == pytest.approx(0.99)
    assert corrected(0.95, comparisons=1) == pytest.approx(0.95)


@pytest.mark.parametrize(("confidence", "comparisons"), [(95, 2), (0.95, 0)])
def test_corrected_refuses(confidence, comparisons):
    """A confidence outside (0, 1) or no comparison at all is refused."""
    with pytest.raises(InvalidInput):
        corrected(confidence, comparisons=comparisons)


def test_margin_is_not_negative():
    """A negative margin would call a loss better."""
    with pytest.raises(InvalidInput):
        verdict((0.0, 1.0), margin=-0.1)
