"""Every registered arm, with settings that are not its defaults, keeps the contract of arms."""

from typing import get_args

import pytest

from strategies import ARMS, make_arms
from strategies.base import Need
from tests.arm_checks import ARM_CHECKS

#: for every arm a value other than the default for every param
SETTINGS = {
    "no_retrieval": [
        {"preset": "gpt", "style": "reasoned", "max_tokens": 20, "templates": {"recall_reasoned": "[body]\n{question}"}}
    ],
    "single_step": [
        {
            "preset": "gpt",
            "style": "reasoned",
            "passages": 2,
            "passage_words": 5,
            "max_tokens": 20,
            "templates": {"read_reasoned": "[body]\n{passages}{question}"},
        },
        {"preset": "flan"},
    ],
    "multi_step": [
        {
            "preset": "gpt",
            "style": "reasoned",
            "rounds": 2,
            "passages_per_round": 1,
            "passages": 2,
            "passage_words": 5,
            "sentence_tokens": 7,
            "max_tokens": 20,
            "templates": {"read_reasoned": "[body]\n{passages}{question}"},
        },
        {"preset": "flan"},
    ],
}
CASES = [(name, settings) for name in sorted(ARMS) for settings in SETTINGS.get(name, [{}])]


def make(name, settings):
    return make_arms({name: settings}, capabilities=frozenset(get_args(Need)))[name]


@pytest.mark.parametrize("check", ARM_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_every_arm_keeps_the_contract(check, name, settings):
    """The arm passes the check named in the test's id."""
    check(lambda: make(name, settings))


@pytest.mark.parametrize("name", sorted(ARMS))
def test_the_contract_runs_with_settings_that_are_not_defaults(name):
    """Every param of every registered arm has a tested value other than its default."""
    default, tested = make(name, {}).params, make(name, SETTINGS[name][0]).params

    assert [param for param in default if default[param] == tested[param]] == []
