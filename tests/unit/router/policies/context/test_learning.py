"""Policies that learn from the context, in made worlds, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.config.context_schema import ContextKey
from ragbandit.router.policies import make_policy, with_settings
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.shared.errors import ConfigError
from ragbandit.shared.types import Query
from ragbandit.testing.policies import ARMS, made_reward, made_updates
from tests.support.policies import WITH_CONTEXT

TIERS = ("free", "pro")
SCHEMA_OF_TIER = {"tier": {"type": "category", "values": list(TIERS)}}
PARAMS = {"mba": {}, "linucb": {}, "vw": {"learning_rate": 0.05}, "conservative": {"incumbent": "no_retrieval"}}


def lesson(number, *, tier, topic, right):
    """A row of a question about one of two topics; the drawn arm is right or not."""
    rng = np.random.default_rng(number)
    features = rng.standard_normal(16).astype(np.float32) * 0.3
    features[:4] += 1.5 if topic else -1.5
    (plain,) = made_updates(1, seed=number, size=16)
    arm = ARMS[int(rng.integers(2))]
    good = arm == ARMS[int(right)]
    return replace(
        plain,
        seq=number,
        arm=arm,
        features=features,
        propensity=0.5,
        query=Query(text="who?", context={"tier": tier}),
        reward=made_reward(1.0 if good else 0.0),
    )


def taught(name, *, best, rows=400):
    """The policy after rows whose best arm is best(tier is pro, topic)."""
    policy = make_policy(name, params={**PARAMS[name], "context": SCHEMA_OF_TIER})
    rng = np.random.default_rng(5)
    for number in range(1, rows + 1):
        pro, topic = (bool(one) for one in rng.integers(2, size=2))
        policy.learn(lesson(number, tier=TIERS[pro], topic=topic, right=best(pro, topic)))
    return policy


def favourite(policy, *, pro, topic):
    update = lesson(9999, tier=TIERS[pro], topic=topic, right=False)
    output = pmf_of_one(policy, update.query, features=update.features, arms=ARMS[:2])
    return int(np.argmax(output.pmf))


@pytest.mark.parametrize("name", ["mba", "linucb"])
def test_a_context_that_is_rare_is_less_known(name):
    """After 380 questions of one tier and 20 of the other, draws and bounds are wider for the other tier."""
    policy, widths = make_policy(name, params={"context": SCHEMA_OF_TIER}), {}
    for number in range(1, 401):
        policy.learn(lesson(number, tier=TIERS[number % 20 == 0], topic=False, right=False))
    for tier in TIERS:
        update = lesson(9999, tier=tier, topic=False, right=False)
        output = pmf_of_one(policy, update.query, features=update.features, arms=ARMS[:2])
        bounds = output.facts.get("ucb")
        wide = output.deviations.std(axis=1) if bounds is None else np.array(bounds) - output.scores
        widths[tier] = float(wide.mean())
    assert widths["pro"] > 1.2 * widths["free"]


@pytest.mark.parametrize("name", WITH_CONTEXT)
@pytest.mark.parametrize(
    "best", [lambda pro, _topic: pro, lambda pro, topic: pro != topic], ids=["context alone", "context x question"]
)
def test_the_best_arm_hangs_on_the_context(name, best):
    """What no question's features tell is learned: the context alone, and where it turns the question's meaning."""
    policy = taught(name, best=best)
    for pro in (False, True):
        for topic in (False, True):
            assert favourite(policy, pro=pro, topic=topic) == int(best(pro, topic))


def test_a_context_that_separates_two_kinds_is_used_within_sixty_labels():
    """If arms of .8 and .3 swap with a declared context, the better one gets over 85 % after 60 labels.

    Mean over 20 streams with uninformative features; after 20 labels it gets more than 70 %.
    """
    shares, (plain,) = {20: [], 60: []}, made_updates(1, size=16)
    for seed in range(20):
        policy, rng = make_policy("mba", params={"context": SCHEMA_OF_TIER}), np.random.default_rng([seed, 7])
        for number in range(1, 61):
            pro, arm, chance = int(rng.integers(2)), int(rng.integers(2)), rng.random()
            query = Query(text="who?", context={"tier": TIERS[pro]})
            reward = made_reward(float(chance < (0.8 if arm == pro else 0.3)), cost=1.0)
            features = rng.standard_normal(16).astype(np.float32)
            policy.learn(replace(plain, seq=number, arm=ARMS[arm], features=features, query=query, reward=reward))
            if number in shares:
                for pro in (0, 1):
                    asked, x = Query(text="who?", context={"tier": TIERS[pro]}), rng.standard_normal(16)
                    output = pmf_of_one(policy, asked, features=x.astype(np.float32), arms=ARMS[:2])
                    shares[number].append(output.pmf[pro])
    assert np.mean(shares[20]) > 0.7
    assert np.mean(shares[60]) > 0.85


def test_the_schema_comes_with_the_configuration_alone():
    """The setting becomes a param where the policy learns from it; a schema among the params as well is refused."""
    schema = {"tier": ContextKey(type="boolean")}
    assert with_settings("mba", params={"ridge": 3.0}, schema=schema) == {
        "ridge": 3.0,
        "context": {"tier": {"type": "boolean"}},
    }
    assert with_settings("uniform", params={}, schema=schema) == {}
    with pytest.raises(ConfigError) as caught:
        with_settings("mba", params={"context": {}}, schema=schema)
    assert caught.value.field == "policy.params.context"


@pytest.mark.parametrize(
    ("context", "field"),
    [
        ({"tier": {"type": "colour"}}, "context.tier.type"),
        ({"tier": 3}, "context.tier"),
        ({"": {"type": "number"}}, "context"),
    ],
)
def test_a_wrong_schema_among_params_is_refused(context, field):
    """A schema that nobody could learn is a ConfigError with its place."""
    with pytest.raises(ConfigError) as caught:
        make_policy("mba", params={"context": context})
    assert caught.value.field == field
