from typing import Any

import pytest

from ragbandit.router.policies import make_policy
from ragbandit.testing.policies import POLICY_CHECKS


@pytest.mark.parametrize("check", POLICY_CHECKS)
def test_policy(check: Any) -> None:
    check(lambda: make_policy("ragbandit.additions.skeleton.parts.policy:OwnPolicy", params={"epsilon": 0.3}))
