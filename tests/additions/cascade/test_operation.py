"""Cascades in operation: findings about rules that do not allow the parts, and no price of tokens."""

import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.operation.findings import findings_of_settings
from ragbandit.workers.setup.generators import prices_by_arm

SERVER = {"name": "openai", "model": "m", "openai": {"base_url": "http://127.0.0.1:9/v1"}}
PARTS = {"empty": True, "first": "a", "then": "b"}


@pytest.mark.parametrize(
    ("arm", "params", "asked"),
    [
        ("both", {"class": "cascade"}, "b"),
        ("cascade", {}, "b"),
        ("both", {"class": "cascade", "differs_from": "c"}, "b, c"),
        ("both", {"class": "cascade", "then": {"class": "model"}}, None),
    ],
    ids=["by its class", "by its name", "three parts", "a part defined in place"],
)
def test_a_rule_that_allows_a_cascade_but_not_its_parts_is_named(arm, params, asked):
    """`validate` names the arms that a permitted cascade asks and that the rule does not allow."""
    arms = {name: {"class": "model"} for name in "abc"} | {arm: {**PARTS, **params}}
    rules = [{"name": "bank", "when": {"tenant": "bank"}, "arms": ["a", arm], "models": []}]
    lines = [finding.line for finding in findings_of_settings(Settings(arms=arms, rules=rules, generator=SERVER))]
    expected = f"bank allows {arm}, which asks {asked}: an arm includes its parts"
    assert [expected in line for line in lines if "includes its parts" in line] == ([] if asked is None else [True])


def test_a_cascade_has_no_price_of_tokens():
    """The dollars of a cascade are those of several models, so `data reprice` has no price for it."""
    priced = {**SERVER, "token_prices": {"input": 1.0, "output": 2.0}}
    arms = {"a": {"class": "model"}, "b": {"class": "model"}, "both": {"class": "cascade", **PARTS}}
    assert prices_by_arm(Settings(arms=arms, generator=priced)).keys() == {"a", "b"}
