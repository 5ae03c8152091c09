"""The estimators against arithmetic by hand, against their identities, and against a simulation with known truth."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ragbandit.router.offline.estimation import ESTIMATORS, Estimator, Moments, estimated, scores
from ragbandit.shared.errors import InvalidInput
from tests.support.logs.estimates import estimate

#: one of each kind
KINDS = [Estimator(name=name) for name in ESTIMATORS]


def log_of(seed, *, rows=60, arms=3):
    """Rewards in [-1, 1] of K arms whose means differ by question; a logger and a candidate of their own."""
    rng = np.random.default_rng(seed)
    logged = 0.9 * rng.dirichlet(np.full(arms, 0.7), rows) + 0.1 / arms
    candidate = rng.dirichlet(np.full(arms, 0.7), rows)
    action = (logged.cumsum(axis=1) < rng.random(rows)[:, None]).sum(axis=1).clip(0, arms - 1)
    means = rng.uniform(-0.5, 0.5, (rows, arms))
    reward = means[np.arange(rows), action] + rng.uniform(-0.5, 0.5, rows)
    predicted = means + rng.normal(0.0, 0.3, (rows, arms))
    return {"reward": reward, "action": action, "logged": logged, "candidate": candidate, "predicted": predicted}


def plain(log):
    """The arguments of an estimator without a model."""
    return {name: log[name] for name in ("action", "logged", "candidate")}


def modelled(log):
    """The arguments of an estimator with a model."""
    return plain(log) | {"predicted": log["predicted"]}


seeds = st.integers(0, 2**32 - 1)


def test_by_hand():
    """Two rows give the values that a pencil gives, by every estimator."""
    reward, action = np.array([1.0, 0.0]), np.array([0, 1])
    logged, candidate = np.array([[0.5, 0.5], [0.75, 0.25]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    log = {"action": action, "logged": logged, "candidate": candidate}  # w = 2, 4
    model = log | {"predicted": np.array([[0.5, 0.0], [0.0, 0.25]])}  # r - M[a] = 0.5, -0.25
    assert estimate("ips", reward, **log).value == 1.0  # (2*1 + 4*0) / 2
    assert estimate("snips", reward, **log).value == pytest.approx(2 / 6)
    assert estimate("dm", reward, **model).value == 0.375
    assert estimate("dr", reward, **model).value == 0.375  # the corrections 1 and -1 cancel
    assert estimate("sndr", reward, **model).value == 0.375


@given(seed=seeds)
def test_on_policy_is_the_mean(seed):
    """Judging the logging policy by its own log gives the mean reward, the mean weight 1 and every row its worth."""
    log = log_of(seed)
    log["candidate"] = log["logged"]
    for name in ("ips", "snips"):
        found = estimate(name, log["reward"], **plain(log))
        assert found.value == pytest.approx(log["reward"].mean(), abs=1e-12)
        assert found.effective_rows == pytest.approx(60.0)
    assert scores(**log)[0] == pytest.approx(1.0, abs=1e-12)


def test_truth_is_found():
    """On 20,000 simulated rows every unbiased estimate is near the candidate's true value."""
    rng = np.random.default_rng(7)
    pmf, means, target = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.5, 0.8]), np.array([0.0, 0.3, 0.7])
    action = rng.choice(3, size=20_000, p=pmf)
    log = {
        "reward": (rng.random(20_000) < means[action]).astype(float),
        "action": action,
        "logged": np.tile(pmf, (20_000, 1)),
        "candidate": np.tile(target, (20_000, 1)),
        "predicted": np.full((20_000, 3), 0.9),  # wrong: DR must mend it
    }
    for estimator in KINDS:
        found = estimate(estimator, **log)
        close = abs(found.value - target @ means) < 0.08
        assert close == (not estimator.biased), estimator.name


def test_holes_are_as_documented():
    """Where the candidate plays an arm that the log never does, IPS counts 0, SNIPS the others, DR the model's word."""
    log = {
        "action": np.zeros(4, dtype=np.intp),
        "logged": np.tile([1.0, 0.0], (4, 1)),
        "candidate": np.tile([0.5, 0.5], (4, 1)),
    }
    reward = np.ones(4)
    assert estimate("ips", reward, **log).value == 0.5
    assert estimate("snips", reward, **log).value == 1.0
    assert estimate("dr", reward, predicted=np.tile([0.0, 0.6], (4, 1)), **log).value == pytest.approx(
        0.5 * 1.0 + 0.5 * 0.6
    )


def test_no_weight_is_no_number():
    """A candidate that plays none of the logged arms has no self-normalised value, and no effective rows."""
    log = log_of(9, arms=2)
    log["candidate"] = np.eye(2)[1 - log["action"]]
    for found in (estimate("snips", log["reward"], **plain(log)), estimate("sndr", log["reward"], **modelled(log))):
        assert math.isnan(found.value)
        assert found.effective_rows == 0.0


@pytest.mark.parametrize("estimator", KINDS, ids=lambda one: one.name)
def test_one_row_has_a_value(estimator):
    """One row has a value, none has no value."""
    log = log_of(10, rows=1)
    found = estimate(estimator, **log)
    nothing = estimated(estimator, moments=Moments.of(*np.empty((3, 0))))
    assert math.isfinite(found.value)
    assert math.isnan(nothing.value)
    assert nothing.effective_rows == 0.0


@pytest.mark.parametrize("text", ["magic", "", "dr:5", "dros", "clipped_ips:10", "snips:"])
def test_other_names_are_refused(text):
    """An unknown estimator is refused with the list of known ones."""
    with pytest.raises(InvalidInput) as caught:
        Estimator(name=text)
    assert caught.value.field == "estimator"
    assert "ips, snips, dm, dr, sndr" in (caught.value.remedy or "")
