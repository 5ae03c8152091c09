"""Example and recorded params of every policy; the fine-tuned ones read with tiny models."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from ragbandit.router.policies import POLICIES, make_policy
from ragbandit.router.policies.base import schema_of
from ragbandit.router.policies.params import PolicyParams
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.testing.policies import ARMS
from tests.support.policy_examples import EXAMPLES, block_maker, context_maker, maker
from tests.support.tiny_models import tiny_encoder


def params_of(name: str) -> type[PolicyParams]:
    """The params dataclass of one of our policies."""
    return type(maker(name)()._params)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_examples_are_not_the_defaults(name):
    """The examples set every parameter, none to its default; `block_maker` and `context_maker` set theirs."""
    for each in fields(params_of(name)):
        if each.name == "block":
            assert block_maker(name)().params["block"] != each.default
            continue
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


ROOT = Path(__file__).parents[3]


RECORDED = (Path(__file__).parent / "recorded_params.jsonl").read_text().splitlines()


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: line[:60])
def test_recorded_params_are_those_of_release_0_1(line):
    """The canonical JSON of `params`, by which snapshots and ledgers know a policy, is byte for byte that of 0.1.

    The lines of recorded_params.jsonl were written by release 0.1, those of newer policies when they came:
    name, params given, what it recorded.
    """
    name, params, recorded = json.loads(line)
    given = {key: value.replace("MODEL", tiny_encoder()) if key == "model" else value for key, value in params.items()}
    if "table" in given:
        given["table"] = str(ROOT / given["table"])
        recorded = recorded.replace("tests/support/", f"{ROOT}/tests/support/")
    assert canonical(dict(make_policy(name, params=given).params)) == recorded.replace("MODEL", tiny_encoder())


def test_recorded_params_are_of_every_policy():
    """No policy is left out of the recorded params."""
    assert {json.loads(line)[0] for line in RECORDED} == set(POLICIES)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_param_with_an_arms_name_is_checked(name):
    """No param of a policy holds the name of an arm that `arms_named` leaves out, but for those of training."""
    policy = make_policy(name, params=EXAMPLES[name])
    given = {key for key, value in EXAMPLES[name].items() if isinstance(value, str) and value in ARMS}
    assert given <= set(policy.arms_named)
