"""Arms that answer in two ways keep the contract of arms in the other one too."""

import pytest

from ragbandit.testing.arms import ARM_CHECKS, check_heeds_the_cap_on_seconds, check_lets_cancellation_through
from tests.support.arms.arm_runs import made
from tests.support.cases import every_case

#: params change nothing about a clock
CHECKS = [
    check for check in ARM_CHECKS if check not in (check_heeds_the_cap_on_seconds, check_lets_cancellation_through)
]


@pytest.mark.parametrize(
    ("name", "params"), [("rq_rag", {"depth": 2}), ("seakr", {"hops": "multi", "samples": 2, "delta": -6.0})]
)
def test_an_arm_keeps_the_contract_in_its_other_mode(name, params):
    """The arm passes all checks with the params of its other mode."""
    with every_case() as case:
        for check in CHECKS:
            with case(check.__name__):
                check(lambda: made(name, **params))
