"""IPS and SNIPS against arithmetic by hand and against a simulation with known truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidInput
from router.evaluation.estimators import ips, snips


def test_by_hand():
    """Two rows give the values that a pencil gives."""
    reward, logged, candidate = np.array([1.0, 0.0]), np.array([0.5, 0.25]), np.array([1.0, 0.5])

    first, second = (f(reward, logged=logged, candidate=candidate) for f in (ips, snips))

    assert first.value == 1.0  # (2*1 + 2*0) / 2
    assert second.value == 0.5  # 2 / 4
    assert second.effective_rows == 2.0
    assert second.standard_error == pytest.approx(math.sqrt(1 + 1) / 4)


@given(
    rewards=st.lists(st.floats(-1, 1), min_size=2, max_size=50),
    seed=st.integers(0, 2**32 - 1),
)
def test_on_policy_is_the_mean(rewards, seed):
    """Judging the logging policy by its own log gives the mean reward."""
    p = np.random.default_rng(seed).uniform(0.05, 1, len(rewards))
    reward = np.array(rewards)

    for estimator in (ips, snips):
        assert estimator(reward, logged=p, candidate=p).value == pytest.approx(reward.mean(), abs=1e-12)


@given(rows=st.lists(st.tuples(st.floats(-1, 1), st.floats(0.01, 1), st.floats(0.01, 1)), min_size=1, max_size=50))
def test_snips_stays_in_range(rows):
    """SNIPS never leaves the range of the rewards it saw."""
    reward, logged, candidate = (np.array(column) for column in zip(*rows, strict=True))

    value = snips(reward, logged=logged, candidate=candidate).value

    assert reward.min() - 1e-12 <= value <= reward.max() + 1e-12


def test_truth_is_found():
    """On 20,000 simulated rows both estimates are within 4 standard errors of the candidate's true value."""
    rng = np.random.default_rng(7)
    pmf, means = np.array([0.7, 0.2, 0.1]), np.array([0.2, 0.5, 0.8])
    arm = rng.choice(3, size=20_000, p=pmf)
    reward = (rng.random(20_000) < means[arm]).astype(float)
    target = np.array([0.0, 0.3, 0.7])

    for estimator in (ips, snips):
        found = estimator(reward, logged=pmf[arm], candidate=target[arm])
        assert abs(found.value - target @ means) < 4 * found.standard_error


@pytest.mark.parametrize(
    ("reward", "logged", "candidate", "field"),
    [
        ([1.0], [0.0], [1.0], "logged"),
        ([1.0], [1.5], [1.0], "logged"),
        ([math.nan], [0.5], [1.0], "reward"),
        ([1.0], [0.5], [-0.1], "candidate"),
        ([], [], [], "log"),
        ([1.0, 2.0], [0.5], [1.0], "log"),
    ],
)
def test_bad_rows_are_refused(reward, logged, candidate, field):
    """A row that makes the number meaningless is refused by name."""
    with pytest.raises(InvalidInput) as caught:
        snips(np.array(reward), logged=np.array(logged), candidate=np.array(candidate))

    assert caught.value.field == field


def test_no_weight_is_no_number():
    """A candidate that plays none of the logged arms has no value, not 0."""
    found = snips(np.array([1.0]), logged=np.array([0.5]), candidate=np.array([0.0]))

    assert math.isnan(found.value)
