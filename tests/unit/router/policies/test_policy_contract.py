"""Every registered policy, with params that are not its defaults, passes `ragbandit.testing.policies`."""

import pytest

from ragbandit.router.policies import POLICIES, make_policy
from ragbandit.shared.errors import ConfigError
from ragbandit.testing import policies as checks
from ragbandit.testing.policies import POLICY_CHECKS
from tests.support.policy_examples import (
    EXAMPLES,
    FINE_TUNED,
    IN_BLOCKS,
    WITH_CONTEXT,
    block_maker,
    context_maker,
    maker,
)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {*FINE_TUNED, "llm"}))
@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
def test_contract(name, check):
    """A registered policy passes every check; the fine-tuned ones and llm: tests/integration/policies."""
    check(maker(name))


@pytest.mark.parametrize("name", IN_BLOCKS)
@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
def test_contract_in_blocks(name, check):
    """A policy that learns in blocks passes every check as well: wherever its rows are cut, the state is the same."""
    check(block_maker(name))


@pytest.mark.parametrize("name", WITH_CONTEXT)
@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
def test_contract_with_context(name, check):
    """A policy that learns from the context passes every check as well: its moments and models are in the state."""
    check(context_maker(name))


def test_every_check_is_listed():
    """Every function check_* of ragbandit/testing/policies.py is in POLICY_CHECKS."""
    written = {name for name in vars(checks) if name.startswith("check_")}
    assert written == {check.__name__ for check in POLICY_CHECKS}


def test_examples_are_of_registered_policies():
    """The examples and the registry name the same policies."""
    assert set(EXAMPLES) == set(POLICIES)


def test_unknown_policy_is_refused():
    """A name outside the registry is a ConfigError that lists the names."""
    with pytest.raises(ConfigError, match="unknown policy 'oracle'") as caught:
        make_policy("oracle", params={})
    assert caught.value.field == "policy.name"
    assert "mba" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "params", "field"),
    [
        ("mba", {"learning_rate": 0.1}, "learning_rate"),
        ("uniform", {"arm": "x"}, "arm"),
        ("fixed", {}, "arm"),
        ("fixed", {"arm": ""}, "arm"),
        ("fixed", {"arm": 3}, "arm"),
        ("mba", {"ridge": "big"}, "ridge"),
        ("mba", {"ridge": True}, "ridge"),
        ("mba", {"ridge": 0.0}, "ridge"),
        ("mba", {"ridge": float("nan")}, "ridge"),
        ("mba", {"bias_ridge": float("inf")}, "bias_ridge"),
        ("mba", {"epsilon_min": -0.1}, "epsilon_min"),
        ("mba", {"epsilon_min": 1.1}, "epsilon_min"),
        ("mba", {"epsilon_min": float("nan")}, "epsilon_min"),
        ("mba", {"epsilon_max": 0.5}, "epsilon_max"),
        ("mba", {"explore": -0.1}, "explore"),
        ("mba", {"explore": float("inf")}, "explore"),
        ("mba", {"memory": 1.0}, "memory"),
        ("mba", {"memory": None}, "memory"),
        ("mba", {"memory": float("inf")}, "memory"),
        ("mba", {"alarm": 0.0}, "alarm"),
        ("mba", {"alarm": float("nan")}, "alarm"),
        ("mba", {"alarm": "loud"}, "alarm"),
    ],
)
def test_wrong_params_are_refused(name, params, field):
    """A param that is unknown, missing, of another type or out of range is a ConfigError with field and remedy."""
    with pytest.raises(ConfigError) as caught:
        make_policy(name, params=params)
    assert caught.value.field == f"policy.params.{field}"
    assert caught.value.remedy
