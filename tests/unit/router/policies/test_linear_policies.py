"""LinUCB against its closed form; test_posterior.py has the heads."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ragbandit.router.policies.algorithms.mba import LinUcb
from ragbandit.router.policies.base import epsilon_greedy, pmf_of_one
from ragbandit.shared.types import Query
from ragbandit.testing.policies import ARMS, made_features, made_reward, made_updates, taught
from tests.support.posteriors import averaged

QUERY = Query(text="who?")


def heads_after(updates):
    heads = averaged(ridge=10.0, bias_ridge=1.0, pairs=64)
    for update in updates:
        heads.learn(update)
    return heads


def output_of(policy, features, arms=ARMS):
    return pmf_of_one(policy, QUERY, features=features, arms=arms)


# --- from a prediction to a pmf -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [LinUcb])
def test_scores_are_posterior_means(make):
    """The scores are the means and not the bounds, so that their argmax is the greedy policy."""
    updates = made_updates(90)
    output = output_of(taught(partial(make), updates), made_features(8))
    means = heads_after(updates).sample(made_features(8), arms=ARMS, weight=0.1)[0].value.tolist()
    assert output.scores == pytest.approx(means, abs=1e-12)


def test_linucb_is_greedy_on_the_bounds():
    """The pmf is epsilon-greedy on score + alpha * width, and the log has these bounds and epsilon."""
    updates = made_updates(90)
    policy = taught(lambda: LinUcb(alpha=1.5, epsilon=0.3), updates)
    output = output_of(policy, made_features(8), (*ARMS, "newcomer"))
    means, deviations = heads_after(updates).sample(made_features(8), arms=(*ARMS, "newcomer"), weight=0.1)
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
