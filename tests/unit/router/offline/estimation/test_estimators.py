"""The doubly robust estimate: by hand, by its identities, and equal to the recorded values of another package."""

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ragbandit.router.offline.estimation import scores
from tests.support.logs.obp_values import CASES, RECORDED, log_of


def estimate(log):
    """The mean of correction + baseline."""
    _, correction, baseline = scores(**log)
    return (correction + baseline).mean()


def test_by_hand():
    """Two rows with the weights 2 and 4: the corrections 1 and -1 cancel, and the model's mean remains."""
    log = {
        "reward": np.array([1.0, 0.0]),
        "action": np.array([0, 1]),
        "logged": np.array([[0.5, 0.5], [0.75, 0.25]]),
        "candidate": np.eye(2),
        "predicted": np.array([[0.5, 0.0], [0.0, 0.25]]),
    }
    assert scores(**log).tolist() == [[2.0, 4.0], [1.0, -1.0], [0.5, 0.25]]
    assert estimate(log) == 0.375


@given(seed=st.integers(0, 2**32 - 1))
def test_a_question_with_every_outcome_gives_its_exact_value(seed):
    """The scores of a question with a row for each arm of a uniform draw average to the candidate's exact reward."""
    random = np.random.default_rng(seed)
    reward, candidate = random.random(4), random.dirichlet(np.ones(4))
    log = {
        "reward": reward,
        "action": np.arange(4),
        "logged": np.full((4, 4), 0.25),
        "predicted": random.random((4, 4)),
    }
    log["predicted"][:] = log["predicted"][0]
    assert estimate(log | {"candidate": np.tile(candidate, (4, 1))}) == pytest.approx(candidate @ reward)


@pytest.mark.other_processor
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded_values(case):
    """The estimate is the one recorded of the Open Bandit Pipeline 0.5.7."""
    assert estimate(log_of(case)) == pytest.approx(json.loads(RECORDED.read_text())[case.name], rel=1e-9, abs=1e-9)
