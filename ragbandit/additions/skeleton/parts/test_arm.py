from typing import Any

import pytest

from ragbandit.additions.skeleton.parts.arm import OwnArm
from ragbandit.testing.arms import ARM_CHECKS


@pytest.mark.parametrize("check", ARM_CHECKS)
def test_arm(check: Any) -> None:
    check(lambda: OwnArm(name="own", words=2))
