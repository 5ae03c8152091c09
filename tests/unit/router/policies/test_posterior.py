"""The Bayesian heads against closed forms: means, covariances, the noise, the widths, what fades, residuals."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.algorithms.mba import LinUcb
from ragbandit.router.policies.base import apply_update, copy_policy, pmf_of_one, restore_policy
from ragbandit.router.policies.posterior import invert
from ragbandit.shared.errors import PolicyFault
from ragbandit.shared.types import Query
from ragbandit.testing.policies import ARMS, made_features, made_query, made_reward, made_updates, sha_of, taught
from tests.support.additions import needs
from tests.support.policies import context_maker, maker
from tests.support.posteriors import averaged, separate

SIZE = 24


def learned(heads, updates):
    """The residual of each of these rows, which the heads learn."""
    return [heads.learn(update) or heads.residual for update in updates]


def heads_after(updates, *, ridge=10.0, bias_ridge=1.0, memory=None):
    heads = averaged(ridge=ridge, bias_ridge=bias_ridge, memory=memory)
    learned(heads, updates)
    return heads


def said(heads, features, *, arms=ARMS):
    """Means of these arms, and the deviations of their samples."""
    means, deviations = heads.sample(features, arms=arms, weight=heads.weight)
    return means, np.sqrt((deviations**2).mean(axis=1))


def output_of(policy, features):
    return pmf_of_one(policy, Query(text="who?"), features=features, arms=ARMS)


def row_of(features, *, quality=0.5, cost=1.0, weight=0.1, arm=ARMS[0]):
    """One lesson, whatever its seq and question."""
    reward = made_reward(quality, cost=cost, weight=weight)
    return replace(made_updates(1)[0], arm=arm, features=features.astype(np.float32), reward=reward)


def design(features):
    """The row (1, x / sqrt(d)), shape (d+1,)."""
    return np.concatenate([[1.0], features.astype(np.float64) / math.sqrt(features.size)])


def solution(updates, arm, *, ridge, bias_ridge):
    """By linear solves over the weighted rows: inverse precision (d+1, d+1), means (2, d+1)."""
    rows = [update for update in updates if update.arm == arm]
    z = np.array([design(update.features) for update in rows])  # (n, d+1)
    y = np.array([(update.reward.quality, update.reward.cost) for update in rows])  # (n, 2)
    weighted = z * np.array([[update.reward.sample_weight] for update in rows])
    precision = np.diag([bias_ridge] + [ridge] * (z.shape[1] - 1)) + weighted.T @ z
    return np.linalg.inv(precision), np.linalg.solve(precision, weighted.T @ y).T


@pytest.mark.parametrize(
    ("ridge", "bias_ridge", "size", "weights"),
    [(10.0, 1.0, 24, (1.0, 1.0)), (0.3, 2.0, 48, (1.0, 1.0)), (3.0, 0.01, 5, (1.0, 1.0)), (10.0, 1.0, 24, (0.05, 4.0))],
)
def test_posterior_is_the_ridge_solution(ridge, bias_ridge, size, weights):
    """After 300 rows per arm means and inverses equal the closed form to 1e-9, whatever the rows count as."""
    rng = np.random.default_rng(7)
    updates = [
        replace(update, reward=replace(update.reward, sample_weight=float(rng.uniform(*weights))))
        for update in made_updates(900, seed=3, size=size)
    ]
    heads = heads_after(updates, ridge=ridge, bias_ridge=bias_ridge)
    for arm in ARMS:
        inverse, mean = solution(updates, arm, ridge=ridge, bias_ridge=bias_ridge)
        assert np.abs(separate(heads, arm).covariance - inverse).max() < 1e-9
        assert np.abs(separate(heads, arm).mean - mean).max() < 1e-9
    total = sum(update.reward.sample_weight for update in updates)
    assert heads._models["question"].noise.rows == pytest.approx(total)


@pytest.mark.parametrize("policy", ["linucb", "mba", pytest.param("vw", marks=needs("vw"))])
@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf"), 1e7])
def test_a_weight_that_is_none_is_refused(policy, weight):
    """A row that counts as less than none, or as more than a million, is a PolicyFault, and leaves no trace."""
    taught_one = taught(maker(policy), made_updates(9))
    before, bad = sha_of(taught_one), made_updates(1, first=10)[0]
    with pytest.raises(PolicyFault, match="sample weight"):
        taught_one.learn(replace(bad, reward=replace(bad.reward, sample_weight=weight)))
    assert sha_of(taught_one) == before


def test_noise_is_that_of_the_rewards():
    """Where quality has noise .2, cost .5 and the weight is .3, the noise of the value is sqrt(.2^2 + .15^2) to 5 %."""
    rng = np.random.default_rng(1)
    slope = {arm: 0.2 * rng.standard_normal(SIZE) for arm in ARMS}
    heads = averaged(ridge=1.0, bias_ridge=1.0)
    for update in made_updates(3000, seed=2):
        quality = 0.5 + slope[update.arm] @ update.features / math.sqrt(SIZE) + 0.2 * rng.standard_normal()
        learned(
            heads, [replace(update, reward=made_reward(quality, cost=2.0 + 0.5 * rng.standard_normal(), weight=0.3))]
        )
    assert heads.noise_at(heads.weight) == pytest.approx(math.hypot(0.2, 0.15), rel=0.05)


def test_width_covers_the_truth():
    """Where truths come from the prior, 1.96 widths hold the true value of 95 % of questions, give or take 2 %."""
    rng, inside = np.random.default_rng(4), []
    for world in range(60):
        weights = 0.4 * rng.standard_normal(SIZE + 1) / np.sqrt([1.0] + [4.0] * SIZE)
        heads = averaged(ridge=4.0, bias_ridge=1.0)
        for update in made_updates(80, arms=ARMS[:1], seed=100 + world):
            quality = float(weights @ design(update.features)) + 0.4 * rng.standard_normal()
            learned(heads, [replace(update, reward=made_reward(quality, weight=0.0))])
        for seed in range(40):
            means, widths = said(heads, made_features(10_000 + seed), arms=ARMS[:1])
            inside.append(abs(weights @ design(made_features(10_000 + seed)) - means.value[0]) < 1.96 * widths[0])
    assert len(inside) == 2400
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_arm_without_rows_has_the_prior():
    """It has mean 0, and for a question of no features the width noise / sqrt(bias_ridge); the first noise is .5."""
    nothing = np.zeros(SIZE, dtype=np.float32)
    fresh = heads_after([], ridge=5.0, bias_ridge=2.0)
    late = heads_after(made_updates(100), ridge=5.0, bias_ridge=2.0)
    assert fresh.noise_at(fresh.weight) == 0.5
    assert late.noise_at(late.weight) != 0.5
    for heads in (fresh, late):
        means, widths = said(heads, nothing, arms=["newcomer"])
        assert (means.quality[0], means.cost[0], means.value[0]) == (0.0, 0.0, 0.0)
        assert widths[0] == pytest.approx(heads.noise_at(heads.weight) / math.sqrt(2.0), rel=1e-9)


def test_weight_is_that_of_the_last_row():
    """The weight is 0 before any row and then the last judged row's; scores and facts use it at once."""
    updates = made_updates(10)
    policy = taught(LinUcb, updates)
    assert output_of(LinUcb(), made_features(1)).facts["weight"] == 0.0
    assert output_of(policy, made_features(1)).facts["weight"] == 0.1
    policy.learn(replace(updates[0], reward=made_reward(0.5, cost=2.0, weight=0.4)))
    facts = output_of(policy, made_features(1)).facts
    scores = [q - 0.4 * c for q, c in zip(facts["quality"], facts["cost"], strict=True)]
    assert facts["weight"] == 0.4
    assert list(output_of(policy, made_features(1)).scores) == scores


def test_reward_without_parts_is_learned_as_it_is():
    """A reward that the caller made itself moves the value towards it, at the weight that was in force."""
    judged = made_updates(20, arms=ARMS[:1])
    given_ = replace(judged[0].reward, preset="reward", weight=0.0, value=0.7, quality=0.7, cost=3.0)
    heads = heads_after([*judged, *(replace(judged[0], reward=given_) for _ in range(5000))])
    assert heads.weight == 0.1
    assert said(heads, judged[0].features, arms=ARMS[:1])[0].value[0] == pytest.approx(0.7, abs=0.01)


def test_learning_one_arm_leaves_the_others():
    """An update moves no array but the drawn arm's and the shared scatter."""
    heads = heads_after(made_updates(30))
    before = {name: array.copy() for name, array in heads.state()[0].items()}
    learned(heads, [replace(made_updates(1, first=31)[0], arm=ARMS[0])])
    for name, array in heads.state()[0].items():
        assert name.endswith((ARMS[0], "scatter")) or np.array_equal(array, before[name])


@pytest.mark.parametrize("name", ["linucb", "mba", "mba with context", "conservative"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e200])
def test_number_that_cannot_be_learned_is_refused(name, number):
    """A quality, cost, weight or feature that is not finite or too large is a PolicyFault and changes nothing."""
    policy = taught(context_maker("mba") if "context" in name else maker(name), made_updates(200))
    row, before = made_updates(1, first=201)[0], sha_of(policy)
    parts = ["quality", "weight", *(["value"] if name == "conservative" else [])]
    if number != 1e200:  # a cost that is only too large counts as the most that the reward can say
        parts.append("cost")
    for part in parts:
        with pytest.raises(PolicyFault):
            policy.learn(replace(row, reward=replace(row.reward, **{part: number})))
    for feature in (number if not math.isfinite(number) else math.inf, 256.0, -1e9):
        features = np.where(np.arange(SIZE) == 3, np.float32(feature), row.features)
        with pytest.raises(PolicyFault, match="a feature is not finite, or beyond 250; use an encoder"):
            policy.learn(replace(row, features=features))
        assert not apply_update(policy, replace(row, features=features))
    assert sha_of(policy) == before
    assert apply_update(policy, row)


def test_noise_fades_too():
    """If noise of .4 is followed by noise of .1, a memory of 100 rows estimates .1; without it, a mean of both."""
    rng = np.random.default_rng(3)
    rows = [
        row_of(rng.standard_normal(SIZE), quality=0.5 + (0.4 if i < 1000 else 0.1) * rng.standard_normal(), weight=0.0)
        for i in range(2000)
    ]
    assert heads_after(rows, memory=100.0).noise_at(0.0) == pytest.approx(0.1, rel=0.15)
    assert heads_after(rows).noise_at(0.0) == pytest.approx(math.sqrt((0.4**2 + 0.1**2) / 2), rel=0.05)


def test_residual_is_standard_where_the_world_is_linear():
    """Where truths come from the prior and the noise is Gaussian, residuals have mean 0 and deviation 1, to 5 %."""
    rng, found = np.random.default_rng(5), []
    for world in range(20):
        weights = 0.4 * rng.standard_normal(SIZE + 1) / np.sqrt([1.0] + [4.0] * SIZE)
        heads = averaged(ridge=4.0, bias_ridge=1.0)
        for update in made_updates(250, arms=ARMS[:1], seed=200 + world):
            quality = float(weights @ design(update.features)) + 0.4 * rng.standard_normal()
            (residual,) = learned(heads, [replace(update, reward=made_reward(quality, weight=0.0))])
            if heads.age(ARMS[0]) > 50:  # the noise itself is known by then
                found.append(residual)
    assert len(found) == 4000
    assert np.mean(found) == pytest.approx(0.0, abs=0.05)
    assert np.std(found) == pytest.approx(1.0, abs=0.05)


def test_a_price_of_its_own_hides_no_cost():
    """What a row at 500 times the usual weight costs is learned whole; at the usual weight it is cut as before."""
    zero = np.zeros(SIZE)
    usual = row_of(zero, cost=1.0, weight=0.1)
    own = row_of(zero, cost=1.0, weight=50.0)
    own = replace(own, query=replace(own.query, cost_weight=50.0))

    def cost_after(rows):
        return said(heads_after([usual, *rows]), zero.astype(np.float32), arms=ARMS[:1])[0].cost[0]

    assert cost_after([own] * 30) == cost_after([usual] * 30)
    assert cost_after([row_of(zero, cost=1e6, weight=0.1)] * 30) < 20.0


def test_an_alarm_restarts_the_arm():
    """When an arm's rewards change there is an alarm, and the arm soon has its new mean."""
    policy = make_policy("mba", params={"epsilon_min": 0.0})
    arms = ARMS[:1]
    for number, update in enumerate(made_updates(900, arms=arms)):
        policy.learn(replace(update, reward=made_reward((0.8 if number < 800 else 0.0) + 0.2 * (number % 2))))
    assert policy.alarms == {ARMS[0]: 1}
    assert policy.age(ARMS[0]) < 100
    output = pmf_of_one(policy, made_query(1), features=made_features(1), arms=arms)
    assert output.facts["quality"][0] == pytest.approx(0.1, abs=0.1)


@pytest.mark.parametrize("name", ["linucb", "mba", "conservative"])
def test_a_copy_learns_apart(name):
    """What the policy learns later is not in its copy. A policy without the attribute `copyable` has no copy."""
    policy = taught(maker(name), made_updates(150))
    before, copy = sha_of(policy), copy_policy(policy)
    assert sha_of(copy) == before
    query, features = made_query(1), made_features(1)
    output = pmf_of_one(copy, query, features=features, arms=ARMS)
    for update in made_updates(90, first=151):
        policy.learn(update)
    assert sha_of(copy) == before != sha_of(policy)
    assert pmf_of_one(copy, query, features=features, arms=ARMS) == output
    assert copy_policy(make_policy("uniform", params={})) is None


def test_restored_policies_share_their_inverses():
    """Policies with the same sums have one read-only inverse of them."""
    policy = taught(maker("mba"), made_updates(150))
    again = restore_policy(maker("mba")(), *policy.state())
    for name, heads in policy._models.items():
        for arm, part in heads._joint.items():
            assert again._models[name]._joint[arm].covariance is part.covariance
            assert not part.covariance.flags.writeable


@pytest.mark.parametrize(("size", "rows", "prior"), [(1, 5, 1.0), (64, 20, 3.3), (65, 20, 1e-6), (257, 900, 3.3)])
def test_inverse_by_halves_is_as_exact_as_an_inverse_of_the_whole(size, rows, prior):
    """The inverse is symmetric, and its error stays below condition * rounding, also for fewer rows than columns."""
    z = np.random.default_rng(0).standard_normal((rows, size))
    precision = z.T @ z + prior * np.eye(size)
    inverse = invert(precision)
    assert np.array_equal(inverse, inverse.T)
    error = np.abs(precision @ inverse - np.eye(size)).max()
    assert error <= size * np.linalg.cond(precision) * np.finfo(float).eps
