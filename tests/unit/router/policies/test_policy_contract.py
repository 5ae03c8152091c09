"""Every registered policy, with params that are not its defaults, passes `ragbandit.testing.policies`."""

import pytest

from ragbandit.router.policies import POLICIES, make_policy
from ragbandit.shared.errors import ConfigError
from ragbandit.testing.policies import POLICY_CHECKS
from tests.support.cases import every_case
from tests.support.policy_examples import (
    EXAMPLES,
    FINE_TUNED,
    IN_BLOCKS,
    WITH_CONTEXT,
    block_maker,
    context_maker,
    maker,
)

MAKERS = {
    **{name: maker(name) for name in sorted(set(POLICIES) - set(FINE_TUNED))},
    **{f"{name} in blocks": block_maker(name) for name in IN_BLOCKS},
    **{f"{name} with context": context_maker(name) for name in WITH_CONTEXT},
}


@pytest.mark.parametrize("name", MAKERS)
def test_contract(name):
    """A registered policy passes every check, with blocks and a context too; fine-tuned, llm: tests/integration."""
    with every_case() as case:
        for check in POLICY_CHECKS:
            with case(check.__name__):
                check(MAKERS[name])


def test_examples_are_of_registered_policies():
    """The examples and the registry name the same policies."""
    assert set(EXAMPLES) == set(POLICIES)


def test_unknown_policy_is_refused():
    """A name outside the registry is a ConfigError that lists the names."""
    with pytest.raises(ConfigError, match="unknown policy 'oracle'") as caught:
        make_policy("oracle", params={})
    assert caught.value.field == "policy.name"
    assert "mba" in caught.value.remedy
