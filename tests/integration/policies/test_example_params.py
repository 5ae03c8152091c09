"""Example params of every policy; the fine-tuned ones read with tiny models."""

from dataclasses import fields

import pytest

from ragbandit.router.policies import POLICIES, make_policy
from ragbandit.router.policies.base import schema_of
from ragbandit.router.policies.params import PolicyParams
from ragbandit.testing.policies import ARMS
from tests.support.policy_examples import EXAMPLES, context_maker, maker


def params_of(name: str) -> type[PolicyParams]:
    """The params dataclass of one of our policies."""
    return type(maker(name)()._params)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_examples_are_not_the_defaults(name):
    """The examples set every parameter, none to its default; `context_maker` sets the context."""
    for each in fields(params_of(name)):
        if each.name == "context":
            assert schema_of(context_maker(name)())
            continue
        assert each.name in EXAMPLES[name], f"{name}.{each.name} has no example"
        assert EXAMPLES[name][each.name] != each.default, f"{name}.{each.name} is tested at its default"


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_params_tell_every_setting(name):
    """`params` names every parameter of the class with the value it was made with."""
    assert dict(maker(name)().params) == EXAMPLES[name]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_algorithm_is_the_registry_name(name):
    """A policy calls itself what the registry calls it: its snapshot finds the class again."""
    assert maker(name)().algorithm == name


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_param_with_an_arms_name_is_checked(name):
    """No param of a policy holds the name of an arm that `arms_named` leaves out, but for those of training."""
    policy = make_policy(name, params=EXAMPLES[name])
    given = {key for key, value in EXAMPLES[name].items() if isinstance(value, str) and value in ARMS}
    assert given <= set(policy.arms_named)
