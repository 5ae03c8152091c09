"""LinUCB against its closed form; test_ridge.py has their heads."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import epsilon_greedy, pmf_of_one
from ragbandit.router.policies.mba import LinUcb
from ragbandit.shared.types import Query
from ragbandit.testing.policies import sha_of, taught
from ragbandit.testing.policy_examples import ARMS, made_features, made_reward, made_updates
from tests.support.posteriors import averaged

QUERY = Query(text="who?")


def heads_after(updates):
    heads = averaged(ridge=10.0, bias_ridge=1.0, block=1)
    for update in updates:
        heads.learn(update)
        heads.finish(update.arm)
    return heads


def output_of(policy, features, arms=ARMS):
    return pmf_of_one(policy, QUERY, features=features, arms=arms)


# --- from a prediction to a pmf -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [LinUcb])
def test_scores_are_posterior_means(make):
    """The scores are the means and not the bounds, so that their argmax is the greedy policy."""
    updates = made_updates(90)
    output = output_of(taught(partial(make, block=1), updates), made_features(8))
    means = heads_after(updates).sampled(made_features(8), arms=ARMS, weight=0.1)[0].value.tolist()
    assert output.scores == pytest.approx(means, abs=1e-12)


def test_linucb_is_greedy_on_the_bounds():
    """The pmf is epsilon-greedy on score + alpha * width, and the log has these bounds and epsilon."""
    updates = made_updates(90)
    policy = taught(lambda: LinUcb(alpha=1.5, epsilon=0.3, block=1), updates)
    output = output_of(policy, made_features(8), (*ARMS, "newcomer"))
    means, deviations = heads_after(updates).sampled(made_features(8), arms=(*ARMS, "newcomer"), weight=0.1)
    bounds = (means.value + 1.5 * np.sqrt((deviations**2).mean(axis=1))).tolist()
    assert output.facts["ucb"] == pytest.approx(bounds, abs=1e-12)
    assert output.pmf == epsilon_greedy(output.facts["ucb"], epsilon=0.3)
    assert output.facts["epsilon"] == 0.3


def test_linucb_tries_what_it_does_not_know():
    """A new arm has a lower mean than arms that pay .3 +- .2, and the highest bound; with alpha 0 it is not tried."""
    updates = [replace(one, reward=made_reward(0.1 + 0.4 * (one.seq % 2))) for one in made_updates(300)]
    for alpha, likeliest in ((4.0, True), (0.0, False)):
        policy = taught(lambda alpha=alpha: LinUcb(alpha=alpha, epsilon=0.0), updates)
        output = output_of(policy, made_features(8), (*ARMS, "newcomer"))
        assert output.scores[-1] < min(output.scores[:-1])
        assert (output.pmf[-1] == 1.0) == likeliest


# --- wrong params ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linucb", "mba"])
@pytest.mark.parametrize("block", [1, 16])
def test_a_calibrated_score_takes_the_place_of_scores_as_they_were(name, block):
    """After 300 scores of .9 forty calibrated ones of .2 win; without calibration they would not."""
    arm = ARMS[0]

    def quality(*, calibrated):
        # no alarm: it would notice the change by itself here
        policy = make_policy(name, params={"block": block} | ({"alarm": 1e18} if name == "mba" else {}))
        for number, update in enumerate(made_updates(340, arms=(arm,))):
            raw = 0.9 if calibrated and number >= 300 else None
            reward = replace(made_reward(0.9 if number < 300 else 0.2), judged_by="judge", raw_quality=raw)
            policy.learn(replace(update, reward=replace(reward, sample_weight=0.3)))
        return output_of(policy, made_features(5), (arm,)).facts["quality"][0]

    assert quality(calibrated=True) < 0.45 < 0.7 < quality(calibrated=False)


def test_scores_wait_for_the_first_calibrated_one_through_a_snapshot():
    """What an arm's scores count as is in the state, so that a policy that was restored gives them up as well."""
    rows = [
        replace(update, reward=replace(update.reward, judged_by="judge", raw_quality=raw, sample_weight=0.25))
        for update, raw in zip(made_updates(60), [None] * 40 + [0.5] * 20, strict=True)
    ]
    straight, first, back = (make_policy("mba", params={"block": 8}) for _ in range(3))
    for row in rows[:40]:
        first.learn(row)
    back.restore(*first.state())
    for row in rows:
        straight.learn(row)
    for row in rows[40:]:
        back.learn(row)
    assert sha_of(back) == sha_of(straight)
