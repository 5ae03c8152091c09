"""Every registered policy, with params that are not its defaults, passes `ragbandit.router.policies.testing`."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from ragbandit.router.errors import ConfigError
from ragbandit.router.policies import POLICIES, make_policy
from ragbandit.router.policies import testing as checks
from ragbandit.router.policies.params import PolicyParams
from ragbandit.router.policies.testing import POLICY_CHECKS
from ragbandit.router.storage.rows import canonical
from tests.support.policy_examples import EXAMPLES, FINE_TUNED, maker
from tests.support.tiny_models import tiny_encoder

ROOT = Path(__file__).parents[4]
RECORDED = (Path(__file__).parent / "recorded_params.jsonl").read_text().splitlines()


def params_of(name: str) -> type[PolicyParams]:
    """The params dataclass of one of our policies."""
    return type(maker(name)()._params)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - set(FINE_TUNED)))
@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
def test_contract(name, check):
    """A registered policy passes every check of the contract; the fine-tuned ones: tests/integration/policies."""
    check(maker(name))


def test_every_check_is_listed():
    """Every function check_* of router/policies/testing.py is in POLICY_CHECKS."""
    written = {name for name in vars(checks) if name.startswith("check_")}
    assert written == {check.__name__ for check in POLICY_CHECKS}


def test_examples_are_of_registered_policies():
    """The examples and the registry name the same policies."""
    assert set(EXAMPLES) == set(POLICIES)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_examples_are_not_the_defaults(name):
    """The example parameters set every parameter, and none to its default."""
    for each in fields(params_of(name)):
        assert each.name in EXAMPLES[name], f"{name}.{each.name} has no example"
        assert EXAMPLES[name][each.name] != each.default, f"{name}.{each.name} is tested at its default"


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: line[:60])
def test_recorded_params_are_those_of_release_0_1(line):
    """The canonical JSON of `params`, by which snapshots and ledgers know a policy, is byte for byte that of 0.1.

    The lines of recorded_params.jsonl were written by release 0.1: name, params given, what it recorded.
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


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_params_tell_every_setting(name):
    """`params` names every parameter of the class with the value it was made with."""
    assert dict(maker(name)().params) == EXAMPLES[name]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_algorithm_is_the_registry_name(name):
    """A policy calls itself what the registry calls it: its snapshot finds the class again."""
    assert maker(name)().algorithm == name


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
