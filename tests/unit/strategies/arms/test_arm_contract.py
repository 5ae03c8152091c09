"""Every built-in arm keeps the contract of arms, with the example of its class and by default."""

import itertools
from dataclasses import fields

import pytest

from ragbandit.shared.types import Budget
from ragbandit.testing.arms import (
    ARM_CHECKS,
    check_heeds_the_cap_on_seconds,
    check_lets_cancellation_through,
    generator,
    run,
)
from ragbandit.testing.params import params_class
from tests.support.arms.arm_runs import ARMS, ARMS_HERE, CHAT, example, made
from tests.support.cases import every_case

#: checks that wait: only with the example, because prompts and numbers change nothing about a clock
BY_THE_CLOCK = {check_heeds_the_cap_on_seconds, check_lets_cancellation_through}


def param_sets(name):
    """The example of an arm, its defaults and its preset for chat models."""
    chat = [{"preset": "chat"}] if name in CHAT else []
    return [example(name), {}, *chat]


@pytest.mark.parametrize("name", ARMS_HERE)
def test_every_arm_keeps_the_contract(name):
    """An arm passes all checks with each set of params."""
    with every_case() as case:
        for number, params in enumerate(param_sets(name)):
            for check in ARM_CHECKS:
                if check not in BY_THE_CLOCK or number == 0:
                    with case(check.__name__, params):
                        check(lambda params=params: made(name, **params))


@pytest.mark.parametrize("name", ARMS_HERE)
def test_caps_on_rounds_and_passages_end_none_of_our_arms(name):
    """Caps on rounds and passages end no arm early: each arm checks them before it spends."""
    budgets = [Budget(rounds=1, passages=1)]
    budgets += [cap for allowed in (0, 1, 2) for cap in (Budget(rounds=allowed), Budget(passages=allowed))]
    texts = (None, "Jaws was born somewhere. " * 3, "Action 1: search[jaws]")
    for params, budget, text in itertools.product(param_sets(name)[:2], budgets, texts):
        outcome = run(made(name, **params), budget=budget, generator_=generator(text=text))
        assert outcome.status == "answered", (params, budget, text, outcome.stop_reason, outcome.error)


@pytest.mark.parametrize("name", ARMS)
def test_the_contract_is_checked_with_other_values_than_the_defaults(name):
    """The params with which the contract is checked are all of an arm's params, none at its default."""
    arm = made(name, **example(name))
    for field in fields(params_class(ARMS[name])):
        if field.name not in ("templates", "unfinished"):  # without an answer an arm has not kept the contract
            default = field.default_factory() if callable(field.default_factory) else field.default
            assert arm.params[field.name] != default, field.name
