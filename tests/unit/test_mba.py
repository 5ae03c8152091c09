"""MBA-RAG's policy against its closed form."""

import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from router.policies.base import pmf_of_one
from router.policies.mba import MbaRag
from router.types import Query
from tests.checks import ARMS, made_features, made_reward, made_updates, sha_of, taught

QUERY = Query(text="who?")


def output_of(policy, features, arms=ARMS):
    return pmf_of_one(policy, QUERY, features=features, arms=arms)


def scores_of(policy, features, arms=ARMS):
    return output_of(policy, features, arms).scores


def ridge(updates, arm, *, ridge_, bias_ridge, size):
    """Weights (size + 1,) that minimise squared error plus ridge, by one linear solve."""
    rows = [u for u in updates if u.arm == arm]
    z = np.array([np.concatenate([[1.0], u.features.astype(np.float64) / math.sqrt(size)]) for u in rows])  # (n, d+1)
    r = np.array([u.reward.value for u in rows])
    prior = np.diag([bias_ridge] + [ridge_] * size)
    return np.linalg.solve(z.T @ z + prior, z.T @ r)


@pytest.mark.parametrize(("ridge_", "bias_ridge", "size"), [(10.0, 1.0, 24), (0.3, 2.0, 48), (3.0, 0.01, 5)])
def test_posterior_mean_is_the_ridge_solution(ridge_, bias_ridge, size):
    """After 300 updates per arm on average the scores equal the closed-form ridge regression to 1e-9."""
    updates = made_updates(900, seed=3, size=size)
    policy = taught(lambda: MbaRag(ridge=ridge_, bias_ridge=bias_ridge), updates)
    for arm in ARMS:
        weights = ridge(updates, arm, ridge_=ridge_, bias_ridge=bias_ridge, size=size)
        assert np.abs(policy.state()[0][f"mean/{arm}"] - weights).max() < 1e-9
        x = made_features(99, size=size)
        z = np.concatenate([[1.0], x.astype(np.float64) / math.sqrt(size)])
        assert scores_of(policy, x, [arm])[0] == pytest.approx(float(weights @ z), abs=1e-9)


def test_inverse_stays_the_inverse():
    """The recursive inverse precision equals the inverse of prior plus sum of z z^T to 1e-9 after 600 updates."""
    updates = [replace(u, arm=ARMS[0]) for u in made_updates(600, seed=4)]
    z = np.array([np.concatenate([[1.0], u.features.astype(np.float64) / math.sqrt(24)]) for u in updates])
    exact = np.linalg.inv(np.diag([1.0] + [10.0] * 24) + z.T @ z)
    assert np.abs(taught(MbaRag, updates).state()[0][f"inverse/{ARMS[0]}"] - exact).max() < 1e-9


@pytest.mark.parametrize("size", [5, 24, 768])
def test_learns_an_arm_that_is_better(size):
    """An arm that always pays more becomes the greedy one."""
    policy = MbaRag()
    for update in made_updates(60, size=size):
        policy.learn(replace(update, reward=made_reward(0.9 if update.arm == ARMS[1] else 0.1)))
    pmf = output_of(policy, made_features(5, size=size)).pmf
    assert pmf.index(max(pmf)) == 1


@pytest.mark.parametrize(
    ("step", "epsilon"), [(2, 1.0), (10, 0.434), (100, 0.217), (500, 0.161), (1292, 0.140)], ids=str
)
def test_schedule_is_the_papers(step, epsilon):
    """At the paper's step e = n + 2 epsilon is 1/ln(e), clipped to 1 (notes/strategies.md, section 8)."""
    policy = MbaRag(epsilon_min=0.0)
    policy.seen = {"x": step - 2}
    assert policy.epsilon == pytest.approx(epsilon, abs=5e-4)


def test_schedule_is_clipped():
    """Epsilon stays within epsilon_min and epsilon_max."""
    policy = MbaRag(epsilon_min=0.2, epsilon_max=0.7)
    assert policy.epsilon == 0.7
    policy.seen = {"x": 10**9}
    assert policy.epsilon == 0.2


def test_schedule_mean_over_the_papers_run():
    """Clipped at 1 the mean of epsilon over steps 1 to 1,292 is .170; step 1 has epsilon 1 and is skipped here."""
    policy, total = MbaRag(epsilon_min=0.0), 1.0
    for n in range(1291):
        policy.seen = {"x": n}
        total += policy.epsilon
    assert total / 1292 == pytest.approx(0.170, abs=5e-4)


def test_schedule_counts_updates():
    """Only learning moves epsilon."""
    policy = taught(MbaRag, made_updates(98))
    assert policy.epsilon == pytest.approx(1 / math.log(100))


def test_greedy_arm_has_the_rest():
    """The best arm has epsilon/K + 1 - epsilon, every other arm epsilon/K (MBA-RAG eq. 3)."""
    policy = taught(lambda: MbaRag(epsilon_min=0.3, epsilon_max=0.3), made_updates(50))
    output = output_of(policy, made_features(1))
    best = output.scores.index(max(output.scores))
    for i, p in enumerate(output.pmf):
        assert p == pytest.approx(0.1 + (0.7 if i == best else 0.0), abs=1e-15)


def test_epsilon_is_logged():
    """The epsilon in force stands in the facts: whoever reads the row sees how much was exploration."""
    policy = taught(MbaRag, made_updates(98))
    assert output_of(policy, made_features(1)).facts == {"epsilon": policy.epsilon}


def test_unseen_arm_scores_zero():
    """An arm that was never learned scores the prior mean, 0; a fresh policy ties all arms."""
    policy = taught(MbaRag, made_updates(30))
    assert scores_of(policy, made_features(1), [*ARMS, "newcomer"])[-1] == 0.0
    assert output_of(MbaRag(), made_features(1)).pmf == pytest.approx((1 / 3,) * 3)


def test_unseen_arm_beats_arms_that_lose():
    """Where every known arm's mean is below 0, the new arm is the greedy one: it gets tried."""
    policy = MbaRag()
    for update in made_updates(60):
        policy.learn(replace(update, reward=made_reward(-0.8)))
    scores = scores_of(policy, made_features(1), [*ARMS, "newcomer"])
    assert max(scores) == scores[-1] == 0.0


def test_learning_one_arm_leaves_the_others():
    """An update moves the drawn arm's arrays and no other arm's."""
    policy = taught(MbaRag, made_updates(30))
    before = {name: array.copy() for name, array in policy.state()[0].items()}
    policy.learn(replace(made_updates(1, first=31)[0], arm=ARMS[0]))
    for name, array in policy.state()[0].items():
        assert np.array_equal(array, before[name]) == (not name.endswith(ARMS[0]))


def test_two_runs_are_bit_identical():
    """Two processes, with another hash seed and another number of BLAS threads, learn the same sha256."""
    code = (
        "from router.policies.mba import MbaRag\n"
        "from tests.checks import made_updates, sha_of, taught\n"
        "print(sha_of(taught(MbaRag, made_updates(200, size=200))))"
    )
    shas = set()
    for threads in ("1", "2"):
        more = {"PYTHONHASHSEED": threads, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        run = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | more, capture_output=True, text=True, check=True, timeout=60
        )
        shas.add(run.stdout.strip())
    shas.add(sha_of(taught(MbaRag, made_updates(200, size=200))))
    assert len(shas) == 1
