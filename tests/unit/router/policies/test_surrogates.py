"""Calibration of scores by ratings, and the posterior of their rows compared with one linear solve."""

from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import pmf_of_one, restore_policy
from ragbandit.router.policies.surrogates import PLAIN, Surrogate
from ragbandit.testing.policies import ARMS, made_features, made_query, made_updates, taught
from tests.support.policies import maker
from tests.support.posteriors import averaged, separate


def scored(updates, score, *, rated, seed=5):
    """Rows of which this share is rated and scored, the others scored alone, which counts as .3 of a row."""
    rng, rows = np.random.default_rng(seed), []
    for update in updates:
        said = float(score(update, rng))
        if rng.random() < rated:
            reward = replace(update.reward, judged_by="human", surrogates={"judge": said})
        else:
            reward = replace(update.reward, judged_by="judge", quality=said, sample_weight=0.3)
        rows.append(replace(update, reward=reward))
    return rows


def honest(update, rng):
    """A score that is .2 + .5 y + noise."""
    return 0.2 + 0.5 * update.reward.quality + 0.1 * rng.standard_normal()


def noise(_update, rng):
    return rng.random()


def bought(update, _rng):
    return float(update.arm == ARMS[0])


def heads_after(rows):
    heads = averaged(ridge=10.0, bias_ridge=1.0)
    for row in rows:
        heads.learn(row)
    return heads


def test_before_a_decision_with_both_a_score_is_taken_for_what_it_says():
    """Rows of a judge alone give the posterior of rows of people that count as much, and nothing is rescaled."""
    rows = scored(made_updates(200), honest, rated=0.0)
    people = [replace(row, reward=replace(row.reward, judged_by="human")) for row in rows]
    heads, same = heads_after(rows), heads_after(people)
    for arm in ARMS:
        assert np.abs(separate(heads, arm).mean - separate(same, arm).mean).max() < 1e-12
    assert heads._surrogates["judge"].scale == PLAIN


def test_posterior_is_that_of_the_scores_turned_into_qualities():
    """Earlier rows of the source count by the latest scale: one weighted solve over all rows gives the same means."""
    rows = scored(made_updates(600), honest, rated=0.2)
    heads = heads_after(rows)
    scale = heads._surrogates["judge"].scale
    assert 0.0 < scale.share <= 1.0
    for arm in ARMS:
        mine = [row for row in rows if row.arm == arm]
        z = np.array([np.concatenate([[1.0], row.features / np.sqrt(row.features.size)]) for row in mine])
        alone = np.array([row.reward.judged_by == "judge" for row in mine])
        quality = np.array([row.reward.quality for row in mine])
        quality = np.where(alone, (quality - scale.offset) / scale.slope, quality)
        weights = np.where(alone, 0.3 * scale.share, 1.0)
        precision = np.diag([1.0] + [10.0] * (z.shape[1] - 1)) + z.T @ (weights[:, None] * z)
        mean = np.linalg.solve(precision, z.T @ (weights * quality))
        assert np.abs(separate(heads, arm).mean[0] - mean).max() < 1e-6
        assert np.abs(separate(heads, arm).covariance - np.linalg.inv(precision)).max() < 1e-6


def test_scale_of_an_honest_source_is_its_regression_on_the_ratings():
    """Slope and offset of .2 + .5 y + noise are within .05 after 400 decisions with both; it counts nearly whole."""
    surrogate, rng = Surrogate(), np.random.default_rng(1)
    for _ in range(400):
        y = rng.random()
        surrogate.learn("a", quality=y, score=0.2 + 0.5 * y + 0.05 * rng.standard_normal())
    assert surrogate.scale.slope == pytest.approx(0.5, abs=0.05)
    assert surrogate.scale.offset == pytest.approx(0.2, abs=0.05)
    assert surrogate.scale.share > 0.7


@pytest.mark.parametrize(("score", "most"), [(noise, 0.05), (bought, 0.0)])
def test_source_that_tells_nothing_ends_without_weight(score, most):
    """Scores that are noise, or favour one arm, get almost no weight, also for rows already learned."""
    rows = scored(made_updates(900), score, rated=0.2)
    heads = heads_after(rows)
    assert heads._surrogates["judge"].scale.share <= most
    people = heads_after([row for row in rows if row.reward.judged_by == "human"])
    values = [one.sample(made_features(1), arms=ARMS, weight=0.1)[0].value for one in (heads, people)]
    assert np.abs(values[0] - values[1]).max() < 0.05


@pytest.mark.parametrize("name", ["mba", "linucb"])
@pytest.mark.parametrize("count", [40, 333])
def test_snapshot_has_what_is_known_of_the_sources(name, count):
    """A restored policy gives the same probabilities, and learns on to the same state."""
    rows = scored(made_updates(count + 60), honest, rated=0.2)
    policy = taught(maker(name), rows[:count])
    arrays, facts = policy.state()
    again = restore_policy(make_policy(name, params=policy.params), arrays, facts)
    asked = [pmf_of_one(one, made_query(1), features=made_features(1), arms=ARMS).pmf for one in (policy, again)]
    assert asked[0] == pytest.approx(asked[1], abs=1e-9)
    for row in rows[count:]:
        policy.learn(row)
        again.learn(row)
    last = [one.state()[0] for one in (policy, again)]
    assert last[0].keys() == last[1].keys()
    assert all(np.allclose(last[0][key], last[1][key], rtol=1e-6, atol=1e-9) for key in last[0])
