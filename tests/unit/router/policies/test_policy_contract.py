"""Every registered policy, with the example params of its class, passes `ragbandit.testing.policies`."""

import pytest

from ragbandit.router.policies import make_policy
from ragbandit.shared.errors import ConfigError
from ragbandit.testing.policies import POLICY_CHECKS
from tests.support.cases import every_case
from tests.support.policies import FINE_TUNED, POLICIES, WITH_CONTEXT, context_maker, maker

MAKERS = {
    **{name: maker(name) for name in POLICIES if name not in FINE_TUNED},
    # conservative restrains linucb, and mba with context learns in small blocks
    **{f"{name} with context": context_maker(name) for name in WITH_CONTEXT if name != "linucb"},
}


@pytest.mark.parametrize("name", MAKERS)
def test_contract(name):
    """A registered policy passes every check, with blocks and a context too; fine-tuned ones: tests/integration."""
    with every_case() as case:
        for check in POLICY_CHECKS:
            with case(check.__name__):
                check(MAKERS[name])


def test_unknown_policy_is_refused():
    """A name outside the registry is a ConfigError that lists the names."""
    with pytest.raises(ConfigError, match="unknown policy 'oracle'") as caught:
        make_policy("oracle", params={})
    assert caught.value.field == "policy.name"
    assert "mba" in caught.value.remedy
