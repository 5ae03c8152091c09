"""The mixture of two arms: the line that a router must beat."""

import pytest
from hypothesis import given, strategies as st

from ragbandit.router.policies.algorithms.fixed import Mixture
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.shared.types import ArmName, Query
from ragbandit.testing.policies import ARMS
from tests.support.examples import steady

NOT, SINGLE, MULTI = ARMS


def output_of(policy, arms):
    return pmf_of_one(policy, Query(text="who?"), features=None, arms=arms)


@steady
@given(share=st.floats(0.0, 1.0))
def test_two_arms_have_their_shares(share):
    """`second` has the share, `first` the rest, any other arm nothing."""
    policy = Mixture(first="single_step", second="multi_step", share=share)
    assert output_of(policy, ARMS).pmf == (0.0, 1.0 - share, share)
    assert output_of(policy, ARMS[::-1]).pmf == (share, 1.0 - share, 0.0)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_one_of_the_two_takes_all(share):
    """Where just one of the two is offered it has probability 1, whatever its share."""
    policy = Mixture(first="single_step", second="multi_step", share=share)
    assert output_of(policy, (NOT, SINGLE)).pmf == (0.0, 1.0)
    assert output_of(policy, (MULTI, NOT)).pmf == (1.0, 0.0)
    assert output_of(policy, (MULTI,)).pmf == (1.0,)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_neither_is_uniform(count):
    """Where neither is offered all arms have 1/K."""
    arms = tuple(ArmName(f"other_{i}") for i in range(count))
    assert output_of(Mixture(first="single_step", second="multi_step"), arms).pmf == (1 / count,) * count
