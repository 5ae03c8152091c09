"""Arms that share parts: the joint posterior against one linear solve, arms without rows, what fades."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ragbandit.router.config.settings import Settings
from ragbandit.router.policies import make_policy, with_settings
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.policies.posterior import COMMON, OWN, PART, Heads, Row
from ragbandit.shared.types import Query
from ragbandit.testing.policies import made_features, made_reward, made_updates

ARMS = ("a", "b", "c", "d")
FACTS = {"a": {"model": "small", "k": 2}, "b": {"model": "small", "k": 4}, "c": {"model": "large", "k": 2}}
Z = np.array([1.0, 0.3, -0.2])
NEW = {"ridge": 3.3, "bias_ridge": 6.6, "memory": None, "pairs": 256}


def design(features):
    """The design row z = (1, x / sqrt(d)), (d + 1,), float64."""
    return np.concatenate([[1.0], features.astype(np.float64) / math.sqrt(features.size)])


def rows_of(count, *, arms=ARMS[:3], seed=1):
    """Features (2,), and rows of these arms."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.standard_normal(2).astype(np.float32),
            Row(
                arms[int(rng.integers(len(arms)))], (float(rng.standard_normal()), 1.0), 0.1, float(rng.uniform(0.3, 2))
            ),
        )
        for _ in range(count)
    ]


def learned(rows, **more):
    heads = Heads(FACTS, **(NEW | more))
    for features, row in rows:
        heads.learn(design(features), row)
    return heads


def qualities(heads, arms=ARMS):
    return heads.means(Z, arms=arms)[0]


def covariance_of_arms():
    """C of all four: a and b share a model, a and c share k, d shares nothing but what is common."""
    shared = np.array([[2, 1, 1, 0], [1, 2, 0, 0], [1, 0, 2, 0], [0, 0, 0, 0]])
    return COMMON + PART * shared + OWN * np.eye(4)


def solution(rows):
    """Means (arms,) of the quality at Z and covariance (arms, arms), by one solve over all rows of all arms."""
    prior = np.linalg.inv(np.kron(covariance_of_arms(), np.diag([0.5, 1.0, 1.0])))
    precision, moment = prior.copy(), np.zeros(12)
    for features, row in rows:
        z = np.zeros(12)
        at = 3 * ARMS.index(row.arm)
        z[at : at + 3] = np.concatenate([[1.0], features.astype(float) / math.sqrt(2)])
        precision += row.rows * np.outer(z, z)
        moment += row.rows * row.target[0] * z
    pick = np.kron(np.eye(4), Z)
    covariance = np.linalg.inv(precision)
    return pick @ covariance @ moment, pick @ covariance @ pick.T


@pytest.mark.parametrize("count", [1, 5, 127, 128, 300])
def test_means_are_those_of_one_regression(count):
    """Means of arms with rows and of one without are those of the joint regression, in and at the end of a block."""
    rows = rows_of(count)
    heads = learned(rows)
    assert qualities(heads) == pytest.approx(solution(rows)[0], abs=1e-9)
    turned = qualities(heads, arms=("d", "b"))
    assert turned == pytest.approx(solution(rows)[0][[3, 1]], abs=1e-9)


@pytest.mark.parametrize("count", [0, 6, 200])
def test_samples_have_the_joint_covariance(count):
    """Over 40 names of the parts the samples of all arms have the posterior's covariance."""
    rows, drawn = rows_of(count), []
    for number in range(40):
        facts = {f"{arm}{number}": {f"{key}{number}": one for key, one in own.items()} for arm, own in FACTS.items()}
        heads = Heads(facts, **NEW)
        for features, row in rows:
            heads.learn(design(features), replace(row, arm=f"{row.arm}{number}"))
        drawn.append(heads.deviations(Z, arms=[f"{arm}{number}" for arm in ARMS]).T)
    covariance = np.cov(np.concatenate(drawn, axis=1))
    wanted = solution(rows)[1]
    scale = np.sqrt(np.diag(wanted))
    # what all share has the same 256 signs under every number
    assert np.abs(covariance - wanted).max() / scale.max() ** 2 < (0.2 if count == 0 else 0.1)


def test_an_arm_without_rows_is_as_its_parts():
    """After 200 rows of a and b at .5 above the prior and of c at it, a new arm of a's model is above one of c's."""
    facts = {**FACTS, "e": {"model": "small", "k": 8}, "f": {"model": "large", "k": 8}}
    heads = Heads(facts, **NEW)
    for number, (features, row) in enumerate(rows_of(200)):
        quality = (0.0 if row.arm == "c" else 0.5) + 0.1 * (number % 2)
        heads.learn(design(features), replace(row, target=(quality, 0.0)))
    small, large = qualities(heads, arms=("e", "f"))
    assert small > large + 0.1


def test_rows_fade_and_an_arm_restarts():
    """With a memory of 100 rows the newest count; a restarted arm goes on from its mean and soon has the new one."""
    features = np.zeros(2, dtype=np.float32)

    def mean_after(values, *, share=None, **more):
        heads = Heads(FACTS, **(NEW | more))
        for number, value in enumerate(values):
            heads.learn(design(features), Row("a", (value, 0.0), 0.1, 1.0))
            if number == 499 and share is not None:
                heads.fade("a", share=share)
        return heads.means(Z * [1, 0, 0], arms=("a",))[0, 0]

    values = [0.8] * 500 + [0.2] * 300
    assert mean_after(values) == pytest.approx(0.575, abs=0.01)
    assert mean_after(values, memory=100.0) < 0.3
    assert mean_after(values, share=0.006) < 0.22


def test_facts_come_from_the_configuration():
    """A grid declares its values, an arm what `facts` says; mba records them, and has no such param without any."""
    settings = Settings.model_validate(
        {
            "arms": {
                "deep": {"class": "multi_step", "grid": {"rounds": [2, 4]}, "facts": {"model": "small"}},
                "plain": {"class": "single_step", "facts": {"model": "large"}},
                "none": {"class": "no_retrieval"},
            }
        }
    )
    facts = {
        "deep": {"rounds": "2", "model": "small"},
        "deep.rounds-4": {"rounds": "4", "model": "small"},
        "plain": {"model": "large"},
    }
    assert settings.arm_facts == facts
    assert "facts" not in settings.worker_arms["plain"]
    params = with_settings("mba", params={}, facts=settings.arm_facts)
    assert make_policy("mba", params=params).params["facts"] == facts
    assert "facts" not in make_policy("mba", params={}).params
    assert with_settings("linucb", params={}, facts=facts) == {}


@pytest.mark.parametrize("facts", [3, {"model": None}, {str(n): n for n in range(17)}])
def test_facts_that_say_nothing_are_refused(facts):
    """Facts are a few names with plain values; the message names the arm."""
    with pytest.raises(ValueError, match=r"arms\.plain\.facts: give at most 16"):
        Settings.model_validate({"arms": {"plain": {"class": "single_step", "facts": facts}}})


def test_an_arm_of_good_parts_is_tried_first():
    """Among two new arms mba draws the arm whose model has been right more often."""
    facts = {"a": {"m": "good"}, "b": {"m": "bad"}, "c": {"m": "good"}, "d": {"m": "bad"}}
    policy = make_policy("mba", params={"facts": facts})
    for update in made_updates(300, arms=("a", "b")):
        quality = 0.9 if update.arm == "a" else 0.1
        policy.learn(replace(update, reward=made_reward(quality, cost=1.0, weight=0.0)))
    output = pmf_of_one(policy, Query(text="q"), features=made_features(5), arms=("c", "d"))
    assert output.pmf[0] > 0.6
