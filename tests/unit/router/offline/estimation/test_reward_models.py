"""Predicted rewards: against plain least squares, never from the row itself, in pieces, and what MRDR weighs."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbandit.router.offline.estimation import reward_models
from ragbandit.router.offline.estimation.reward_models import (
    Ridge,
    cross_fitted,
    folds_of,
    mrdr_weights,
    progressive,
    regressor_named,
)
from ragbandit.shared.errors import ConfigError, InvalidInput
from tests.support.logs.estimates import estimate

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


def fitted(log, *, weights=None, penalty=10.0):
    ridge = Ridge(arms=ARMS, folds=3, penalty=penalty)
    ridge.add(**log, weights=weights)
    return ridge.predict(log["features"], folds=log["folds"])


class LeastSquares:
    """As scikit-learn's regressors: fit and predict."""

    def fit(self, features, targets):
        design = np.column_stack([np.ones(len(features)), features])
        self.found = np.linalg.lstsq(design, targets, rcond=None)[0]
        return self

    def predict(self, features):
        return np.column_stack([np.ones(len(features)), features]) @ self.found


class Nothing:
    def fit(self, features, targets):
        pass

    def predict(self, features):
        return np.full(len(features), math.nan)


seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=20)


def test_folds_are_of_the_key_alone():
    """A row's fold does not depend on the rows beside it, and the folds are about as large as each other."""
    keys = np.random.default_rng(0).integers(0, 2**64, 9000, dtype=np.uint64)

    folds = folds_of(keys, folds=3)

    assert (folds_of(keys[::-1], folds=3)[::-1] == folds).all()
    assert (abs(np.bincount(folds, minlength=3) - 3000) < 250).all()
    with pytest.raises(InvalidInput, match="folds"):
        folds_of(keys, folds=1)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_penalised_solution(weighted):
    """The coefficients are those of weighted least squares with the prior's rows appended to the arm's."""
    log, penalty = log_of(1), 7.0
    weights = np.random.default_rng(1).exponential(5.0, 200) if weighted else np.ones(200)
    learned = log["folds"] != 2
    mean = log["targets"][learned].mean(axis=0)
    design = np.column_stack([np.ones(200), log["features"].astype(float)])
    square = (weights[learned, None] * design[learned] ** 2).mean(axis=0)
    prior = np.diag(np.sqrt(np.array([1.0, *[penalty * 4] * 4]) * square))

    found = fitted(log, penalty=penalty, weights=weights if weighted else None)

    for arm in range(ARMS):
        chosen = learned & (log["action"] == arm)
        root = np.sqrt(weights[chosen, None])
        rows = np.vstack([root * design[chosen], prior])
        values = np.vstack([root * (log["targets"][chosen] - mean), np.zeros((5, 2))])
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


@few
@given(seed=seeds, cuts=st.lists(st.integers(0, 200), max_size=3))
def test_pieces_make_the_whole(seed, cuts):
    """A log added and predicted in pieces gives the predictions of the whole."""
    log, ridge = log_of(seed), Ridge(arms=ARMS, folds=3)
    parts = [slice(*ends) for ends in pairwise([0, *sorted(cuts), 200])]
    for part in parts:
        ridge.add(**{name: values[part] for name, values in log.items()})

    found = np.concatenate([ridge.predict(log["features"][part], folds=log["folds"][part]) for part in parts])

    assert found == pytest.approx(fitted(log), rel=1e-9, abs=1e-9)


@few
@given(seed=seeds, order=st.permutations(range(200)), cut=st.integers(1, 199))
def test_merged_parts_are_the_whole(seed, order, cut):
    """Two ridges with parts of a log, in any order, merged, predict what the one of the whole log predicts."""
    log = log_of(seed)
    weights = np.random.default_rng(seed).exponential(3.0, 200)
    whole = Ridge(arms=ARMS, folds=3)
    whole.add(**log, weights=weights)
    parts = [Ridge(arms=ARMS, folds=3) for _ in range(2)]
    for ridge, rows in zip(parts, (order[:cut], order[cut:]), strict=True):
        ridge.add(**{name: values[rows] for name, values in log.items()}, weights=weights[rows])
    merged = parts[1].merged(parts[0])
    wanted = whole.predict(log["features"], folds=log["folds"])
    assert merged.predict(log["features"], folds=log["folds"]) == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_blocks_make_the_whole(monkeypatch):
    """Taking few rows at a time changes nothing but the memory that is used."""
    log = log_of(2)
    whole = fitted(log, weights=log["features"][:, 0].astype(float) ** 2)

    monkeypatch.setattr(reward_models, "ROWS", 7)

    assert fitted(log, weights=log["features"][:, 0].astype(float) ** 2) == pytest.approx(whole, rel=1e-9, abs=1e-9)


@few
@given(seed=seeds, scale=st.floats(1e-6, 1e6))
def test_scales_do_not_matter(seed, scale):
    """Features in other units, and weights all larger or smaller, give the same predictions."""
    log = log_of(seed)
    weights = np.random.default_rng(seed).random(200)
    before = fitted(log, weights=weights)
    other = log | {"features": log["features"].astype(float) * np.array([scale, 1.0, 1.0 / scale, 1.0])}

    assert fitted(other, weights=weights) == pytest.approx(before, rel=1e-6, abs=1e-6)
    assert fitted(log, weights=weights * scale) == pytest.approx(before, rel=1e-6, abs=1e-6)


def test_no_weight_anywhere_is_the_mean_of_all():
    """Where no row has weight, as under MRDR for an arm that is never played, every arm is the rows' plain mean."""
    log = log_of(12)
    here = log["folds"] == 0

    found = fitted(log, weights=np.zeros(200))[here]

    assert found == pytest.approx(np.broadcast_to(log["targets"][~here].mean(axis=0), found.shape), rel=1e-12)


def test_an_arm_without_rows_is_the_mean_of_all():
    """An arm that nobody played is predicted by the mean of the training rows, by both ways of fitting."""
    log = log_of(3)
    log["action"] = np.where(log["action"] == 2, 1, log["action"])
    here = log["folds"] == 0
    mean = log["targets"][~here].mean(axis=0)

    for found in (fitted(log), cross_fitted(LeastSquares, **log, arms=ARMS)):
        assert found[here, 2] == pytest.approx(np.tile(mean, (int(here.sum()), 1)), rel=1e-12)


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


def test_a_feature_of_zeros_is_no_trouble():
    """A feature that is 0 in every row changes nothing but the number of features."""
    log = log_of(5)
    empty = log | {"features": np.column_stack([log["features"], np.zeros(200)])}

    # The penalty is in units of the features' number.
    assert fitted(empty, penalty=10.0 * 4 / 5) == pytest.approx(fitted(log, penalty=10.0), rel=1e-9, abs=1e-9)


def test_targets_do_not_mix():
    """A target is predicted the same alone as beside another."""
    log = log_of(6)

    alone = fitted(log | {"targets": log["targets"][:, :1]})

    assert fitted(log)[:, :, :1] == pytest.approx(alone, rel=1e-9, abs=1e-12)


@few
@given(seed=seeds)
def test_progressive_knows_only_the_past(seed):
    """Other targets from row 50 on change nothing in the blocks up to the one that holds row 50."""
    log = log_of(seed)
    del log["folds"]
    arguments = {"arms": ARMS, "starts": [0, 20, 40, 80, 160], "first": np.array([0.5, -1.0])}
    before = progressive(**log, **arguments)
    log["targets"] = np.where(np.arange(200)[:, None] >= 50, 9.0, log["targets"])

    after = progressive(**log, **arguments)

    assert (before[:20] == np.array([0.5, -1.0])).all()
    assert (after[:80] == before[:80]).all()
    assert not np.allclose(after[80:], before[80:])


def test_progressive_is_the_ridge_of_the_past():
    """A block is predicted as a fold of its own is by the rows before it; features may be missing."""
    log = log_of(7)
    folds = np.where(np.arange(200) < 90, 0, 1)
    del log["folds"]
    for features in (log["features"], None):
        ridge = Ridge(arms=ARMS, folds=2)
        ridge.add(features, action=log["action"], targets=log["targets"], folds=folds)
        expected = ridge.predict(features, folds=folds)[90:]

        found = progressive(**log | {"features": features}, arms=ARMS, starts=[0, 30, 90], first=np.zeros(2))

        assert found[90:] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_fold_without_others():
    """A fold that has no others to learn from is refused, by both ways of fitting."""
    alone = log_of(9) | {"folds": np.ones(200, dtype=np.intp)}
    for fit in (lambda: fitted(alone), lambda: cross_fitted(LeastSquares, **alone, arms=ARMS)):
        with pytest.raises(InvalidInput, match="outside of fold 1"):
            fit()


def test_one_row():
    """A log of one row is refused by its length, not by a fold."""
    one = {key: value[:1] for key, value in log_of(9).items()}
    for fit in (lambda: fitted(one), lambda: cross_fitted(LeastSquares, **one, arms=ARMS)):
        with pytest.raises(InvalidInput, match="has one row") as refused:
            fit()
        assert refused.value.field == "log"


def test_a_regressor_that_gives_no_numbers_is_refused():
    """Predictions that are not finite are the regressor's fault, not an estimate."""
    with pytest.raises(ConfigError, match="finite"):
        cross_fitted(Nothing, **log_of(10), arms=ARMS)


def test_a_regressor_is_found_by_its_name():
    """The text module:Class makes that class's instances."""
    made = regressor_named(f"{__name__}:LeastSquares")

    assert made is LeastSquares
    assert np.isfinite(cross_fitted(made, **log_of(11), arms=ARMS)).all()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sklearn.linear_model.Ridge", "no import path"),
        ("no_such_package:Model", "import"),
        (".relative:Model", "import"),
        ("math:no_such", "has no attribute"),
        ("math:pi", "neither"),
        ("fractions:Fraction", "no method fit"),
        ("", "no import path"),
    ],
)
def test_other_names_are_refused(name, said):
    """A text that is no regressor is refused with what is wrong in it."""
    with pytest.raises(ConfigError, match=said) as caught:
        regressor_named(name)

    assert caught.value.field == "model"


def _variance(errors, *, logged, candidate):
    """Of DR's score at one question, by enumeration of the arms that may be drawn; rewards without noise."""
    scores = candidate / logged * errors
    return float((logged * scores**2).sum() - (logged * scores).sum() ** 2)


@few
@given(seed=seeds)
def test_mrdr_measures_the_variance(seed):
    """The weighted squared error is DR's variance for a deterministic candidate, less cross terms for any other."""
    rng = np.random.default_rng(seed)
    logged, errors = rng.dirichlet(np.ones(ARMS)) * 0.9 + 0.1 / ARMS, rng.normal(size=ARMS)
    every = np.arange(ARMS)
    for candidate in (np.eye(ARMS)[seed % ARMS], rng.dirichlet(np.ones(ARMS))):
        tiled = {"logged": np.tile(logged, (ARMS, 1)), "candidate": np.tile(candidate, (ARMS, 1))}

        weighted = float((logged * mrdr_weights(every, **tiled) * errors**2).sum())

        missed = candidate * errors
        cross = float(missed.sum() ** 2 - (missed**2).sum())
        assert weighted - cross == pytest.approx(_variance(errors, logged=logged, candidate=candidate), abs=1e-9)
        if candidate.max() == 1.0:
            assert cross == pytest.approx(0.0, abs=1e-12)
            q, p = candidate, logged
            assert mrdr_weights(every, **tiled) == pytest.approx(q * (1 - p) / p**2)


def test_mrdr_lessens_the_variance():
    """A model that cannot be right everywhere makes DR surer of a candidate when it is fitted for it."""
    rng, rows = np.random.default_rng(12), 20_000
    x = rng.uniform(-1.0, 1.0, rows)
    rare = np.where(x > 0.0, 0.02, 0.9)
    logged = np.stack([rare, 1.0 - rare], axis=1)
    action = (rng.random(rows) < logged[:, 1]).astype(np.intp)
    reward = np.where(action == 0, x**2 * (x > 0.0) * 3.0, 0.2) + rng.normal(0.0, 0.05, rows)
    candidate = np.tile([1.0, 0.0], (rows, 1))
    rows_of = {"action": action, "targets": reward[:, None], "folds": rng.integers(0, 2, rows)}
    errors = []
    for weights in (None, mrdr_weights(action, logged=logged, candidate=candidate)):
        ridge = Ridge(arms=2, folds=2, penalty=0.01)
        ridge.add(x[:, None], **rows_of, weights=weights)
        predicted = ridge.predict(x[:, None], folds=rows_of["folds"])[:, :, 0]
        found = estimate("dr", reward, action=action, logged=logged, candidate=candidate, predicted=predicted)
        errors.append(found.standard_error)

    assert errors[1] < 0.7 * errors[0]
