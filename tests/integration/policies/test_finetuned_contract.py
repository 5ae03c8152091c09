"""The fine-tuned policies, on tiny models, pass `ragbandit.testing.policies`."""

import pytest

from ragbandit.testing.policies import POLICY_CHECKS
from tests.support.policy_examples import FINE_TUNED, maker


@pytest.mark.parametrize("name", FINE_TUNED)
@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
def test_contract(name, check):
    """A fine-tuned policy passes every check of the contract."""
    check(maker(name))
