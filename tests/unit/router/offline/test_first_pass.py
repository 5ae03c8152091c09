"""Summary of the first pass, on passes computed by hand."""

import numpy as np
import pytest

from ragbandit.router.offline.first_pass import first_pass
from ragbandit.router.offline.simulation import Played


def played(earned):
    """A pass with these rewards."""
    return Played(order=np.arange(len(earned)), drawn=np.zeros(len(earned), dtype=np.intp), earned=np.array(earned))


def said(*passes, high, low=0.0, incumbent="high", harm=0.05):
    """The summary of these passes, on a table of constant rewards."""
    rewards = np.tile([low, high], (500, 1)).astype(np.float64)
    return first_pass(passes, arms=("low", "high"), rewards=rewards, incumbent=incumbent, harm=harm)


def test_break_even_of_the_middle_pass():
    """The median of three passes is the second; it is None if fewer than half get there."""
    never, early, late = [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1]
    found = said(played(never), played(early), played(late), high=0.5)
    assert (found.break_even, found.break_even_share) == (4, pytest.approx(2 / 3))
    found = said(played(never), played(never), played([2, 2, 2, 2]), high=0.5)
    assert (found.break_even, found.break_even_share) == (None, pytest.approx(1 / 3))


def test_worst_prefix_looks_from_the_hundredth_on():
    """Nothing earned in 50 questions is half of the incumbent's after 100, and less of it later."""
    earned = [0.0] * 50 + [1.0] * 150
    found = said(played([1.0] * 200), played(earned), high=1.0)
    assert found.worst_prefix == 0.5
    assert found.harmed == 0.5


def test_harm_is_what_the_bound_allows():
    """Four of a hundred lost is within a harm of .05, and not within one of .03."""
    run = played([0.0] * 4 + [1.0] * 200)
    assert said(run, high=1.0, harm=0.05).harmed == 0.0
    assert said(run, high=1.0, harm=0.03).harmed == 1.0
