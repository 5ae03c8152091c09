"""The choice of a parameter on the log: the errors, pieces, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbandit.router.offline.estimation.estimators import Estimator, estimated, terms
from ragbandit.router.offline.estimation.tuning import GRIDS, trials
from ragbandit.shared.errors import InvalidInput


def log_of(seed, *, rows=300, floor=0.01, error=0.0):
    """Arms worth .3 and .7; the log plays the better one rarely, the candidate always; the model is off by `error`."""
    rng = np.random.default_rng(seed)
    better = rng.uniform(floor, 0.2, rows)
    logged = np.stack([1.0 - better, better], axis=1)
    action = (rng.random(rows) < better).astype(np.intp)
    means = np.tile([0.3, 0.7], (rows, 1))
    reward = (rng.random(rows) < means[np.arange(rows), action]).astype(float)
    candidate = np.tile([0.0, 1.0], (rows, 1))
    return {"reward": reward, "action": action, "logged": logged, "candidate": candidate, "predicted": means + error}


def test_errors_by_hand():
    """The error is the variance of the mean plus the square of the bias that is seen."""
    log = {
        "reward": np.array([1.0, 1.0]),
        "action": np.array([0, 0]),
        "logged": np.array([[0.25, 0.75], [0.5, 0.5]]),
        "candidate": np.array([[1.0, 0.0], [1.0, 0.0]]),
    }  # w = 4, 2; capped at 3: scores 3, 2, dropped 1, 0

    assert trials("clipped_ips", grid=[3.0], **log).errors()[0] == pytest.approx(0.25 / 2 + 0.5**2)


@pytest.mark.parametrize("name", GRIDS)
def test_trials_are_the_estimates(name):
    """The scores of each trial have the mean and the error of the estimate with that parameter."""
    log = log_of(1, error=0.1)
    found = trials(name, **log)

    for estimator, moments in zip(found.estimators, found.moments, strict=True):
        estimate = estimated(estimator, moments=terms(estimator, **log).moments)
        assert moments.mean[0] == pytest.approx(estimate.value, rel=1e-12)
        assert math.sqrt(moments.covariance[0, 0] / 300) == pytest.approx(estimate.standard_error, rel=1e-9)
        whole = Estimator(name="ips" if name == "clipped_ips" else "dr")
        unbiased = estimated(whole, moments=terms(whole, **log).moments)
        assert moments.mean.sum() == pytest.approx(unbiased.value, rel=1e-9)  # nothing is lost, only left out


@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1, 299), name=st.sampled_from(sorted(GRIDS)))
def test_pieces_make_the_whole(seed, cut, name):
    """A log read in two pieces gives the errors of the whole."""
    log = log_of(seed, error=0.1)
    first, second = ({key: values[part] for key, values in log.items()} for part in (slice(cut), slice(cut, None)))

    merged = trials(name, **first).merged(trials(name, **second))

    assert merged.errors() == pytest.approx(trials(name, **log).errors(), rel=1e-9)


def test_a_right_model_is_followed():
    """Where the model is right and weights are large, they are shrunk."""
    assert all(trials("dros", **log_of(seed)).chosen().parameter < math.inf for seed in range(20))


def test_a_wrong_model_is_left():
    """Where the model is far off and the rows are many, the weights are kept."""
    chosen = trials("switch_dr", **log_of(2, rows=20_000, floor=0.05, error=-0.6)).chosen()

    assert chosen.parameter >= 20.0  # the largest weight is 1 / .05


def test_equal_estimates_take_the_first():
    """Parameters above every weight make the same estimate: the first of them is chosen."""
    log = log_of(3)

    assert trials("clipped_ips", grid=[1000.0, 2000.0], **log).chosen().parameter == 1000.0


@pytest.mark.parametrize("name", ["dr", "ips", "magic"])
def test_what_has_no_parameter_cannot_be_tuned(name):
    """An estimator without a parameter is refused with those that have one."""
    with pytest.raises(InvalidInput, match="clipped_ips, switch_dr, dros"):
        trials(name, **log_of(4))


@pytest.mark.parametrize("grid", [[], [-1.0], [math.nan]])
def test_wrong_grids_are_refused(grid):
    """An empty grid, and one with a parameter that is none, are refused."""
    with pytest.raises(InvalidInput):
        trials("dros", grid=grid, **log_of(5))


def test_other_wrong_inputs_are_refused():
    """A missing model and another grid's pieces are refused."""
    log = log_of(6)
    found = trials("dros", **log)

    with pytest.raises(InvalidInput, match="grid"):
        found.merged(trials("dros", grid=[1.0], **log))
    del log["predicted"]
    with pytest.raises(InvalidInput, match="predicted"):
        trials("dros", **log)
