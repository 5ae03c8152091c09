"""Costs have one set of bounds for all reporters."""

import math

import pytest

from ragbandit.router.learning.reward import cost_of_terms
from ragbandit.shared.types import AMOUNTS, COST_TERMS, MAX_AMOUNT, Cost


@pytest.mark.parametrize(
    ("amount", "expected"), [(-1, 0), (-1e9, 0), (math.nan, 0), (math.inf, MAX_AMOUNT), (3e24, MAX_AMOUNT), (5, 5)]
)
def test_no_amount_of_a_cost_is_below_0_or_beyond_the_cap(amount, expected):
    """An amount that a server, an arm or a stored row reports beyond the bounds is cut there, also in sums."""
    cost = Cost(dollars=amount, seconds_total=amount) + Cost(dollars=0.0)
    assert (cost.dollars, cost.seconds_total) == (expected, expected)


def test_no_cost_raises_a_reward():
    """The cost of an answer is at least 0, whatever its counts are, so a reward is at most its quality."""
    below = Cost(**dict.fromkeys(AMOUNTS, -(10**6)))
    assert below == Cost()
    assert isinstance(below.prompt_tokens, int)
    assert cost_of_terms(0.0, below, terms=dict.fromkeys(COST_TERMS, 1.0)) == 0.0
