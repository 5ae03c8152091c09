"""The ridge heads against closed forms: means, inverses, the noise, the widths."""

import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from router.errors import PolicyFault, SnapshotError
from router.policies.base import apply, pmf_of_one
from router.policies.lints import LinTs
from router.policies.ridge import RidgeHeads
from router.policies.softmax import Softmax
from router.types import Query
from tests.checks import ARMS, made_features, made_reward, made_updates, sha_of, taught

SIZE = 24


def output_of(policy, features):
    return pmf_of_one(policy, Query(text="who?"), features=features, arms=ARMS)


def heads_after(updates, *, ridge=10.0, bias_ridge=1.0):
    heads = RidgeHeads(ridge=ridge, bias_ridge=bias_ridge)
    for update in updates:
        heads.learn(update)
    return heads


def design(features):
    """The row (1, x / sqrt(d)), shape (d+1,)."""
    return np.concatenate([[1.0], features.astype(np.float64) / math.sqrt(features.size)])


def solution(updates, arm, *, ridge, bias_ridge):
    """By linear solves: inverse precision (d+1, d+1), means (2, d+1), scatter that is left (2, 2)."""
    rows = [update for update in updates if update.arm == arm]
    z = np.array([design(update.features) for update in rows])  # (n, d+1)
    y = np.array([(update.reward.quality, update.reward.cost) for update in rows])  # (n, 2)
    precision = np.diag([bias_ridge] + [ridge] * (z.shape[1] - 1)) + z.T @ z
    mean = np.linalg.solve(precision, z.T @ y).T
    return np.linalg.inv(precision), mean, y.T @ y - mean @ precision @ mean.T


@pytest.mark.parametrize(("ridge", "bias_ridge", "size"), [(10.0, 1.0, 24), (0.3, 2.0, 48), (3.0, 0.01, 5)])
def test_posterior_is_the_ridge_solution(ridge, bias_ridge, size):
    """After 300 rows per arm means and inverses of both heads equal the closed form to 1e-9."""
    updates = made_updates(900, seed=3, size=size)
    arrays, _ = heads_after(updates, ridge=ridge, bias_ridge=bias_ridge).state()
    for arm in ARMS:
        inverse, mean, _ = solution(updates, arm, ridge=ridge, bias_ridge=bias_ridge)
        assert np.abs(arrays[f"inverse/{arm}"] - inverse).max() < 1e-9
        assert np.abs(arrays[f"mean/{arm}"] - mean).max() < 1e-9


def test_inverse_is_symmetric_to_the_last_bit():
    """After 900 rows every inverse equals its transpose exactly."""
    arrays, _ = heads_after(made_updates(900)).state()
    for arm in ARMS:
        assert np.array_equal(arrays[f"inverse/{arm}"], arrays[f"inverse/{arm}"].T)


def test_scatter_is_what_the_ridge_solution_leaves():
    """The scatter, kept row by row, equals sum y y^T - W precision W^T over the arms to 1e-9 of its size."""
    updates = made_updates(900, seed=5)
    arrays, _ = heads_after(updates).state()
    left = sum(solution(updates, arm, ridge=10.0, bias_ridge=1.0)[2] for arm in ARMS)
    assert arrays["scatter"] == pytest.approx(left, rel=1e-9)


def test_noise_is_that_of_the_rewards():
    """Where quality has noise .2, cost .5 and the weight is .3, the noise of the value is sqrt(.2^2 + .15^2) to 5 %."""
    rng = np.random.default_rng(1)
    slope = {arm: 0.2 * rng.standard_normal(SIZE) for arm in ARMS}
    heads = RidgeHeads(ridge=1.0, bias_ridge=1.0)
    for update in made_updates(3000, seed=2):
        quality = 0.5 + slope[update.arm] @ update.features / math.sqrt(SIZE) + 0.2 * rng.standard_normal()
        heads.learn(replace(update, reward=made_reward(quality, cost=2.0 + 0.5 * rng.standard_normal(), weight=0.3)))
    assert heads.noise == pytest.approx(math.hypot(0.2, 0.15), rel=0.05)


def test_width_is_the_posteriors():
    """The width equals noise * sqrt(z^T P z), with the noise and P of the closed form, to 1e-9."""
    updates = made_updates(200, seed=6)
    found = heads_after(updates).opinion(made_features(9), arms=ARMS)
    parts = [solution(updates, arm, ridge=10.0, bias_ridge=1.0) for arm in ARMS]
    covariance = (np.array([[0.25, 0.0], [0.0, 0.0]]) + sum(part[2] for part in parts)) / 201
    price = np.array([1.0, -0.1])
    z = design(made_features(9))
    for (inverse, mean, _), value, width in zip(parts, found.value, found.width, strict=True):
        assert value == pytest.approx(float(price @ mean @ z), abs=1e-9)
        assert width == pytest.approx(math.sqrt(price @ covariance @ price * (z @ inverse @ z)), rel=1e-9)


def test_width_covers_the_truth():
    """Where truths come from the prior, 1.96 widths hold the true value of 95 % of questions, give or take 2 %."""
    rng, inside = np.random.default_rng(4), []
    for world in range(60):
        weights = 0.4 * rng.standard_normal(SIZE + 1) / np.sqrt([1.0] + [4.0] * SIZE)
        heads = RidgeHeads(ridge=4.0, bias_ridge=1.0)
        for update in made_updates(80, arms=ARMS[:1], seed=100 + world):
            quality = float(weights @ design(update.features)) + 0.4 * rng.standard_normal()
            heads.learn(replace(update, reward=made_reward(quality, weight=0.0)))
        for seed in range(40):
            found = heads.opinion(made_features(10_000 + seed), arms=ARMS[:1])
            inside.append(abs(weights @ design(made_features(10_000 + seed)) - found.value[0]) < 1.96 * found.width[0])
    assert len(inside) == 2400
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_order_of_rows_does_not_matter():
    """The same rows in another order give the same posterior, noise included, to 1e-9."""
    updates = made_updates(300, seed=7)
    turned = [updates[i] for i in np.random.default_rng(0).permutation(300)]
    straight, other = heads_after(updates).state()[0], heads_after(turned).state()[0]
    for name, array in straight.items():
        assert other[name] == pytest.approx(array, rel=1e-9, abs=1e-9)


def test_arm_without_rows_has_the_prior():
    """It has mean 0 and width noise * sqrt(1/bias_ridge + |x|^2 / d / ridge), before any row with noise .5."""
    x = made_features(3)
    prior = math.sqrt(1 / 2.0 + float((x.astype(np.float64) ** 2).mean()) / 5.0)
    fresh = heads_after([], ridge=5.0, bias_ridge=2.0)
    late = heads_after(made_updates(100), ridge=5.0, bias_ridge=2.0)
    assert fresh.noise == 0.5
    assert late.noise != 0.5
    for heads in (fresh, late):
        found = heads.opinion(x, arms=["newcomer"])
        assert (found.quality, found.cost, found.value) == ((0.0,), (0.0,), (0.0,))
        assert found.width[0] == pytest.approx(heads.noise * prior, rel=1e-12)


def test_rows_make_the_width_shrink():
    """An arm's width falls with every row like its own question's; the other arms keep their spread."""
    x = made_features(3)
    heads = RidgeHeads(ridge=1.0, bias_ridge=1.0)
    spreads = []
    for update in made_updates(20, arms=ARMS[:1]):
        found = heads.opinion(x, arms=ARMS)
        spreads.append([width / heads.noise for width in found.width])
        heads.learn(replace(update, features=x))
    shrunk = np.array(spreads)
    assert (np.diff(shrunk[:, 0]) < 0).all()
    assert np.ptp(shrunk[:, 1:]) < 1e-12


def test_weight_is_that_of_the_last_row():
    """The weight is 0 before any row and then the last judged row's; scores and facts use it at once."""
    updates = made_updates(10)
    policy = taught(Softmax, updates)
    assert output_of(Softmax(), made_features(1)).facts["weight"] == 0.0
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
    assert heads.opinion(judged[0].features, arms=ARMS[:1]).value[0] == pytest.approx(0.7, abs=0.01)


def test_learning_one_arm_leaves_the_others():
    """An update moves the drawn arm's arrays and the shared scatter, no other arm's arrays."""
    heads = heads_after(made_updates(30))
    before = {name: array.copy() for name, array in heads.state()[0].items()}
    heads.learn(replace(made_updates(1, first=31)[0], arm=ARMS[0]))
    for name, array in heads.state()[0].items():
        assert np.array_equal(array, before[name]) == (not name.endswith((ARMS[0], "scatter")))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e200])
def test_number_that_cannot_be_learned_is_refused(number):
    """A quality, cost, weight or feature that is not finite or too large is a PolicyFault and changes nothing."""
    good = made_updates(20)
    policy, row = taught(LinTs, good), made_updates(1, first=21)[0]
    before = sha_of(policy)
    spoilt = row.features.copy()
    spoilt[3] = number if not math.isfinite(number) else math.inf
    bad = [replace(row, reward=replace(row.reward, **{name: number})) for name in ("quality", "cost")]
    if not math.isfinite(number):
        bad.append(replace(row, reward=replace(row.reward, weight=number)))
    for update in (*bad, replace(row, features=spoilt)):
        with pytest.raises(PolicyFault):
            policy.learn(update)
        assert not apply(policy, update)
        assert sha_of(policy) == before
    assert apply(policy, row)


def test_state_of_other_arms_is_refused():
    """Arrays without counts, counts without arrays, and a weight that is no number are SnapshotErrors."""
    arrays, facts = taught(LinTs, made_updates(20)).state()
    fewer = {name: array for name, array in arrays.items() if not name.endswith(ARMS[0])}
    stranger = arrays | {"mean/stranger": arrays[f"mean/{ARMS[0]}"]}
    for broken, more in ((fewer, {}), (stranger, {}), (arrays, {"weight": "x"}), (arrays, {"weight": math.nan})):
        policy = LinTs()
        with pytest.raises(SnapshotError):
            policy.restore(broken, facts | more)
        assert sha_of(policy) == sha_of(LinTs())


def test_two_runs_are_bit_identical():
    """Two processes, with another hash seed and another number of BLAS threads, learn and answer the very same."""
    code = (
        "from router.policies.base import pmf_of_one\n"
        "from router.policies.lints import LinTs\n"
        "from tests.checks import *\n"
        "from tests.checks import made_updates, taught\n"
        "policy = taught(LinTs, made_updates(200, size=200))\n"
        "print(sha_of(policy), pmf_of_one(policy, made_query(1), features=made_features(1, size=200), arms=ARMS))"
    )
    said = set()
    for threads in ("1", "2"):
        more = {"PYTHONHASHSEED": threads, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        run = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | more, capture_output=True, text=True, check=True, timeout=60
        )
        said.add(run.stdout)
    assert len(said) == 1
