"""With many arms widths and Thompson's integral are computed in another order: the same numbers, much less work."""

import math
import time

import numpy as np
import pytest

from ragbandit.router.policies import make_policy
from ragbandit.router.policies.base import pmf_of_one
from ragbandit.router.policies.linear import ridge, thompson
from ragbandit.shared.types import ArmName
from ragbandit.testing.policy_examples import made_features, made_query, made_updates


def worlds(arms: int):
    """Name, means and widths: alike, spread out, of all sizes, half of them never tried, in two groups, some sure."""
    rng = np.random.default_rng(arms)
    some = np.arange(arms) < arms // 2
    yield "alike", rng.normal(0, 0.02, arms), 0.05 * rng.uniform(0.9, 1.1, arms)
    yield "spread", rng.normal(0, 0.3, arms), rng.uniform(0.02, 0.2, arms)
    yield "sizes", rng.normal(0, 0.1, arms), 10 ** rng.uniform(-5, 0, arms)
    yield "fresh", np.where(some, 0.0, rng.normal(0.3, 0.1, arms)), np.where(some, 1.0, 0.03)
    yield "groups", np.where(some, 0.0, 5.0) + rng.normal(0, 0.01, arms), np.full(arms, 0.02)
    yield "sure", rng.normal(0, 0.1, arms), np.where(some, 0.0, 0.1)
    yield "equal", np.zeros(arms), np.full(arms, 0.3)


@pytest.mark.parametrize("arms", [9, 20, 40])
def test_the_integrals_are_the_same(arms, monkeypatch):
    """The chances on shared nodes are those of the pieces of each arm, to 1e-9."""
    for name, mean, width in worlds(arms):
        found = thompson.chance_of_being_best(mean, widths=width)
        with monkeypatch.context() as few:
            few.setattr(thompson, "MANY_ARMS", 10**6)
            expected = thompson.chance_of_being_best(mean, widths=width)
        assert np.abs(np.array(found) - expected).max() < 1e-9, name


def test_an_independent_integral():
    """They are those of a plain sum over a fine grid as well."""
    for name, mean, width in worlds(12):
        if width.min() < 0.01:
            continue  # too narrow for the grid
        x = np.linspace(float((mean - 9 * width).min()), float((mean + 9 * width).max()), 20_001)
        z = (x[:, None] - mean) / width
        below = 0.5 * np.vectorize(math.erfc)(-z / math.sqrt(2.0))
        density = np.exp(-0.5 * z * z) / (width * math.sqrt(2.0 * math.pi))
        expected = [(density[:, i] * np.delete(below, i, axis=1).prod(axis=1)).sum() * (x[1] - x[0]) for i in range(12)]
        assert np.abs(np.array(thompson.chance_of_being_best(mean, widths=width)) - expected).max() < 1e-9, name


def test_equal_arms_share():
    """Arms with one mean and one width have one chance each, the same whatever their order."""
    found = thompson.chance_of_being_best([0.5] * 50, widths=[0.1] * 50)
    assert found == pytest.approx([0.02] * 50, abs=1e-12)


def taught(name: str, *, arms: list[ArmName]):
    policy = make_policy(name, params={"block": 64})
    for update in made_updates(3 * len(arms), arms=arms):
        policy.learn(update)
    return policy


@pytest.mark.parametrize("name", ["linucb", "lints"])
def test_decisions_are_the_same(name, monkeypatch):
    """A policy's pmf, scores and widths over many arms are those of the way for few arms, to 1e-9."""
    arms = [ArmName(f"arm_{number:02}") for number in range(30)]
    policy, offered = taught(name, arms=arms), [*arms, ArmName("never_seen")]
    found = pmf_of_one(policy, made_query(1), features=made_features(1), arms=offered)
    monkeypatch.setattr(ridge, "MANY_ARMS", 10**6)
    monkeypatch.setattr(thompson, "MANY_ARMS", 10**6)
    expected = pmf_of_one(policy, made_query(1), features=made_features(1), arms=offered)
    assert found.pmf == pytest.approx(expected.pmf, abs=1e-9)
    assert found.scores == expected.scores
    for fact in {"ucb", "width"} & expected.facts.keys():
        assert found.facts[fact] == pytest.approx(expected.facts[fact], abs=1e-12)


def test_work_grows_as_the_arms():
    """Four times the arms are not sixteen times the work, let alone more."""
    seconds = {}
    for arms in (25, 100):
        _, mean, width = next(iter(worlds(arms)))
        thompson.chance_of_being_best(mean, widths=width)
        began = time.process_time()
        for _ in range(10):
            thompson.chance_of_being_best(mean, widths=width)
        seconds[arms] = time.process_time() - began
    assert seconds[100] < 12 * seconds[25]
