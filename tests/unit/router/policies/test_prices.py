"""A weight of cost for each question: one learned policy serves every price, and learning stays as it is."""

from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import pmf_of_one, serves_prices
from ragbandit.shared.types import Query
from ragbandit.testing.policies import ARMS, made_features, made_reward, made_updates, taught

LINEAR = ("linucb", "mba")


def rows(*, weight, own=None, count=120):
    """The same answers, their rewards at one weight of cost; own: those that the questions came with, in turn."""
    made = []
    for at, update in enumerate(made_updates(count, seed=5)):
        mine = None if own is None else own[at % len(own)]
        parts = update.reward
        reward = made_reward(parts.quality, cost=min(parts.cost, 3.0), weight=weight if mine is None else mine)
        made.append(replace(update, reward=reward, query=replace(update.query, cost_weight=mine)))
    return made


def at_price(policy, weight):
    return pmf_of_one(policy, Query(text="who?", cost_weight=weight), features=made_features(9), arms=ARMS)


@pytest.mark.parametrize("name", LINEAR)
def test_a_question_at_its_own_weight(name):
    """A question's own weight gives the output of a policy with that weight; scores are quality - weight * cost."""
    policy = taught(lambda: make_policy(name, params={}), rows(weight=0.05))
    for weight in (0.0, 0.3):
        served = at_price(policy, weight)
        quality, cost = served.facts["quality"], served.facts["cost"]
        assert served.facts["weight"] == weight
        assert served.scores == pytest.approx([q - weight * c for q, c in zip(quality, cost, strict=True)], abs=1e-12)
        other = taught(lambda: make_policy(name, params={}), rows(weight=weight))
        if name == "linucb":  # the others' widths, or their average of two models, follow the rewards' noise
            assert served.pmf == pytest.approx(at_price(other, None).pmf, abs=1e-9)
    assert at_price(policy, None) == at_price(policy, 0.05)
    assert at_price(policy, 0.0).scores != at_price(policy, 0.3).scores


@pytest.mark.parametrize("name", LINEAR)
def test_prices_change_no_lesson(name):
    """Rows at many prices teach the heads what rows at one do; questions without one are served at the service's."""
    one = taught(lambda: make_policy(name, params={}), rows(weight=0.05, count=400))
    many = taught(lambda: make_policy(name, params={}), rows(weight=0.05, own=(0.2, None, 0.0), count=400))
    heads = {key for key in one.state()[0] if "moment" in key}
    assert heads
    for key in heads:
        np.testing.assert_allclose(many.state()[0][key], one.state()[0][key], atol=1e-12)
    assert at_price(many, None).facts["weight"] == 0.05


def test_who_serves_prices():
    """The policies with heads apart do, and what holds one of them back; a policy with a price of its own does not."""
    params = {"conservative": {"incumbent": ARMS[0]}, "fixed": {"arm": ARMS[0]}}
    names = [*LINEAR, *params]
    serving = {name for name in names if serves_prices(make_policy(name, params=params.get(name, {})))}
    assert serving == {*LINEAR, "conservative"}
    around_fixed = {"incumbent": ARMS[0], "policy": "fixed", "params": {"arm": ARMS[1]}}
    assert not serves_prices(make_policy("conservative", params=around_fixed))


def test_what_is_lost_is_read_at_one_price():
    """An incumbent that is worth .8 - .1 * 2 loses the same to an arm of .5, whatever prices the questions have."""
    around_fixed = {"incumbent": ARMS[0], "policy": "fixed", "params": {"arm": ARMS[1]}}
    for prices in ((0.1,), (0.0, 0.1, 0.2), (0.3, 1e6)):
        policy = make_policy("conservative", params=around_fixed | {"harm": 1.0, "weight": 0.1})
        for at, update in enumerate(made_updates(240, seed=5)):
            weight, is_incumbent = prices[at // 2 % len(prices)], at % 2 == 0
            quality, cost = (0.8, 2.0) if is_incumbent else (0.5, 0.0)
            reward = made_reward(quality, cost=cost, weight=weight)
            query = replace(update.query, cost_weight=weight)
            policy.learn(replace(update, arm=ARMS[at % 2], propensity=0.5, reward=reward, query=query, decided=None))
        assert policy.shortfall.allowance("turn") == pytest.approx(0.6)
        assert policy.shortfall._lost == pytest.approx(120 * (0.6 - 0.5))


@pytest.mark.parametrize("name", LINEAR)
def test_a_stream_of_prices_alone(name):
    """A question without a price gets the last row's; from the first row without one on that of such rows."""
    policy = taught(lambda: make_policy(name, params={}), rows(weight=0.05, own=(0.2, 0.1), count=20))
    assert at_price(policy, None).facts["weight"] == 0.1
    again = make_policy(name, params={})
    again.restore(*policy.state())
    for one in (policy, again):
        for update in rows(weight=0.05, own=(None, 0.3), count=2):
            one.learn(update)
        assert at_price(one, None).facts["weight"] == 0.05
