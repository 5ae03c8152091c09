"""Params of every policy: its examples, and that its ranges are kept; the fine-tuned ones read with tiny models."""

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from ragbandit.router.policies import make_policy
from ragbandit.shared.errors import ConfigError
from ragbandit.testing.policies import ARMS
from tests.support.policies import POLICIES, example, params_of


@pytest.mark.parametrize("name", POLICIES)
def test_the_contract_is_checked_with_other_values_than_the_defaults(name):
    """The params with which the contract is checked are all of a policy's params, none at its default."""
    params = example(name)
    for each in fields(params_of(name)):
        if each.name not in ("context", "revision"):  # `context_maker` sets the context; the revision has one value
            assert each.name in params, f"{name}.{each.name} has no example"
            assert params[each.name] != each.default, f"{name}.{each.name} has its default"


@pytest.mark.parametrize("name", POLICIES)
def test_every_param_with_an_arms_name_is_checked(name):
    """`arms_named` lists every param that holds the name of an arm, except the params of training."""
    policy = make_policy(name, params=example(name))
    given = {key for key, value in example(name).items() if isinstance(value, str) and value in ARMS}
    assert given <= set(policy.arms_named)


def wrong_values(policy: str) -> Iterator[tuple[str, object]]:
    """(param, a value that it does not take): of another type, NaN, beyond the ends of its range."""
    kind = params_of(policy)
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        if each.name != "context":
            yield each.name, object()
            yield each.name, [object()]
        for part in (hints[each.name], *get_args(hints[each.name])):
            for bound in [one for field in getattr(part, "__metadata__", ()) for one in field.metadata]:
                ends = {name: getattr(bound, name) for name in ("ge", "gt", "le", "lt") if hasattr(bound, name)}
                if not ends:
                    continue
                yield from ((each.name, value) for value in (math.nan, math.inf, -math.inf, 10**400, True, "1"))
                for name, end in ends.items():
                    beyond = {"ge": end - abs(end) / 2 - 1, "gt": end, "le": end * 2 + 1, "lt": end}[name]
                    yield each.name, type(end)(beyond)
                if int in get_args(part) and float not in get_args(part):
                    yield each.name, 3.5
    yield "no_such_param", 1


@pytest.mark.parametrize("name", POLICIES)
def test_wrong_params_are_refused(name):
    """A param that is unknown, of another type or out of its range is a ConfigError with field and remedy."""
    for param, value in wrong_values(name):
        with pytest.raises(ConfigError) as caught:
            make_policy(name, params=example(name) | {param: value})
        assert str(caught.value.field).startswith(f"policy.params.{param}"), (param, value)
        assert caught.value.remedy
