"""Predicted rewards: against plain least squares, never from the row itself, in pieces."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from ragbandit.router.offline.estimation.reward_model import Ridge
from ragbandit.shared.errors import InvalidInput

ARMS = 3


def log_of(seed, *, rows=200, size=4):
    """Rewards linear in the features, another line for each arm, with noise; two targets."""
    rng = np.random.default_rng(seed)
    features = rng.normal(0.5, 1.0, (rows, size)).astype(np.float32)
    action = rng.choice(ARMS, size=rows, p=[0.6, 0.3, 0.1])
    lines = rng.normal(0.0, 1.0, (ARMS, size))
    reward = (features * lines[action]).sum(axis=1) + action + rng.normal(0.0, 0.1, rows)
    targets = np.stack([reward, 2.0 - 3.0 * reward], axis=1)
    return {"features": features, "action": action, "targets": targets, "folds": rng.integers(0, 3, rows)}


def fitted(log, *, penalty=10.0):
    ridge = Ridge(arms=ARMS, folds=3, penalty=penalty)
    ridge.add(**log)
    return ridge.predict(log["features"], folds=log["folds"])


seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=20)


def test_the_penalised_solution():
    """The coefficients are those of least squares with the prior's rows appended to the arm's."""
    log, penalty = log_of(1), 7.0
    learned = log["folds"] != 2
    mean = log["targets"][learned].mean(axis=0)
    design = np.column_stack([np.ones(200), log["features"].astype(float)])
    square = (design[learned] ** 2).mean(axis=0)
    prior = np.diag(np.sqrt(np.array([1.0, *[penalty * 4] * 4]) * square))
    found = fitted(log, penalty=penalty)
    for arm in range(ARMS):
        chosen = learned & (log["action"] == arm)
        rows = np.vstack([design[chosen], prior])
        values = np.vstack([log["targets"][chosen] - mean, np.zeros((5, 2))])
        solution = np.linalg.lstsq(rows, values, rcond=None)[0]
        expected = design[~learned] @ solution + mean
        assert found[~learned, arm] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@few
@given(seed=seeds, fold=st.integers(0, 2))
def test_no_row_is_predicted_by_itself(seed, fold):
    """Other targets within a fold change nothing in that fold's predictions, and do change the others'."""
    log = log_of(seed)
    mine = log["folds"] == fold
    before = fitted(log)
    log["targets"] = np.where(mine[:, None], -log["targets"], log["targets"])
    after = fitted(log)
    assert (after[mine] == before[mine]).all()
    assert not np.allclose(after[~mine], before[~mine])


def test_an_arm_without_rows_is_the_mean_of_all():
    """An arm that nobody played is predicted by the mean of the training rows."""
    log = log_of(3)
    log["action"] = np.where(log["action"] == 2, 1, log["action"])
    here = log["folds"] == 0
    mean = log["targets"][~here].mean(axis=0)
    assert fitted(log)[here, 2] == pytest.approx(np.tile(mean, (int(here.sum()), 1)), rel=1e-12)


def test_without_features_an_arm_is_its_mean():
    """Without features an arm is its mean in the other folds, shrunk by one row towards the mean of all."""
    log = log_of(4) | {"features": None}
    ridge = Ridge(arms=ARMS, folds=3)
    ridge.add(**log)
    learned = log["folds"] != 1
    mean = log["targets"][learned].mean(axis=0)
    mine = log["targets"][learned & (log["action"] == 0)]
    found = ridge.predict(None, folds=np.array([1, 1]))
    expected = mean + (mine - mean).sum(axis=0) / (len(mine) + 1)
    assert found.shape == (2, ARMS, 2)
    assert found[1, 0] == pytest.approx(expected)


def test_features_can_be_left_out_later():
    """What was learned with features gives, without them, what learning without them gives."""
    log = log_of(13)
    with_them, without = (Ridge(arms=ARMS, folds=3) for _ in range(2))
    with_them.add(**log)
    without.add(**log | {"features": None})
    mine, theirs = (ridge.predict(None, folds=log["folds"]) for ridge in (with_them.without_features(), without))
    assert mine == pytest.approx(theirs, rel=1e-12)


def test_a_fold_without_others():
    """A fold that has no others to learn from is refused."""
    alone = log_of(9) | {"folds": np.ones(200, dtype=np.intp)}
    with pytest.raises(InvalidInput, match="outside of fold 1"):
        fitted(alone)
