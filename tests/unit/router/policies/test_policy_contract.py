"""Every registered policy, with parameters that are not its defaults, keeps the contract of
tests/support/policy_checks.py.
"""

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from ragbandit.router.errors import ConfigError
from ragbandit.router.policies import POLICIES, make_policy
from ragbandit.router.policies.base import Policy
from tests.support import policy_checks as checks
from tests.support.policy_checks import POLICY_CHECKS, Make
from tests.support.tiny_models import tiny_encoder, tiny_trained

#: of the fine-tuned policies, which read the question themselves
_READING: dict[str, object] = {"model": tiny_encoder(), "max_tokens": 16, "device": "cpu", "precision": "bfloat16"}
_FITTING: dict[str, object] = {
    **_READING,
    "threads": 1,
    "learning_rate": 1e-3,
    "batch": 4,
    "epochs": 2,
    "validation": 0.3,
    "seed": 3,
}

#: registry name -> parameters, each other than its default
EXAMPLES: dict[str, dict[str, object]] = {
    "adaptive_rag": {
        "single": "one",
        "multi": "many",
        **_FITTING,
        "trained": tiny_trained("adaptive_rag"),
    },
    "budget": {
        "target": 2.0,
        "policy": "softmax",
        "params": {"temperature": 0.3, "ridge": 3.0, "bias_ridge": 0.5},
        "step": 0.05,
        "horizon": 30,
        "price_max": 0.7,
    },
    "fixed": {"arm": "multi_step"},
    "lints": {"scale": 0.5, "ridge": 3.0, "bias_ridge": 0.5},
    "linucb": {"alpha": 2.0, "epsilon": 0.1, "ridge": 3.0, "bias_ridge": 0.5},
    # Nobody listens there: every answer is a failure. tests/unit/router/policies/test_llm_policy.py has one that
    # answers.
    "llm": {
        "model": "scripted",
        "base_url": "http://127.0.0.1:9/v1",
        "api_key_env": "NO_SUCH_KEY",
        "descriptions": {"multi_step": "digs"},
        "fallback": "multi_step",
        "timeout_s": 3.0,
        "max_concurrency": 2,
        "temperature": 0.5,
        "seed": 4,
        "epsilon": 0.2,
    },
    "mba": {"ridge": 3.0, "bias_ridge": 0.5, "explore": 0.7, "epsilon_min": 0.1, "memory": 50.0, "alarm": 4.0},
    "mba_paper": {
        **_READING,
        "threads": 1,
        "seed": 3,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "total": 30,
        "floor": 1e-4,
        "warmup": 0.1,
        "loss": "code",
        "reward": "single",
        "failure": "code",
    },
    "mixture": {"first": "single_step", "second": "multi_step", "share": 0.3},
    "multi_label": {
        "choice": "net",
        "tau": 0.7,
        "weight": 0.1,
        **_FITTING,
        "trained": tiny_trained("multi_label"),
    },
    "popularity": {
        "table": str(Path(__file__).parents[3] / "support" / "popularity.json"),
        "below": "multi_step",
        "above": "single_step",
        "threshold": 3.0,
        "epsilon": 0.2,
    },
    "softmax": {"temperature": 0.3, "ridge": 3.0, "bias_ridge": 0.5},
    "uniform": {},
    "vw": {
        "explorer": "epsilon",
        "epsilon": 0.1,
        "gamma_scale": 3.0,
        "cb_type": "dr",
        "learning_rate": 0.05,
        "power_t": 0.5,
        "bits": 16,
    },
}


def class_of(name: str) -> type[Policy]:
    module, _, attribute = POLICIES[name].partition(":")
    return getattr(import_module(module), attribute)


def maker(name: str) -> Make:
    if name not in EXAMPLES:
        pytest.fail(f"policy {name!r} has no example parameters in EXAMPLES")
    return lambda: make_policy(name, params=EXAMPLES[name])


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("check", POLICY_CHECKS, ids=lambda check: check.__name__)
def test_contract(name, check):
    """A registered policy passes every check of the contract."""
    check(maker(name))


def test_every_check_is_listed():
    """Every function check_* of tests/support/policy_checks.py is in POLICY_CHECKS."""
    written = {name for name in vars(checks) if name.startswith("check_")}
    assert written == {check.__name__ for check in POLICY_CHECKS}


def test_examples_are_of_registered_policies():
    """The examples and the registry name the same policies."""
    assert set(EXAMPLES) == set(POLICIES)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_examples_are_not_the_defaults(name):
    """The example parameters set every parameter, and none to its default."""
    maker(name)
    for key, parameter in inspect.signature(class_of(name)).parameters.items():
        assert key in EXAMPLES[name], f"{name}.{key} has no example"
        assert EXAMPLES[name][key] != parameter.default, f"{name}.{key} is tested at its default"


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
