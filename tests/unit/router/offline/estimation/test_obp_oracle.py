"""Our estimators against the Open Bandit Pipeline's: recorded values."""

import json

import pytest

from ragbandit.router.offline.estimation import Estimator
from tests.support.logs.estimates import estimate
from tests.support.logs.obp_values import CASES, PLAIN, RECORDED, log_of


def ours(log):
    """What `values_of` tells of OBP, from our functions."""
    plain = {name: log[name] for name in ("action", "logged", "candidate")}
    modelled = plain | {"predicted": log["predicted"]}
    found = {}
    for name in PLAIN:
        arguments = modelled if Estimator(name=name).needs_model else plain
        found[name] = estimate(name, log["reward"], **arguments).value
    return found


def compare(mine, theirs):
    for key, value in theirs.items():
        assert mine[key] == pytest.approx(value, rel=1e-9, abs=1e-9), key


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded_values(case):
    """Every estimate is the one recorded of OBP 0.5.7."""
    recorded = json.loads(RECORDED.read_text())[case.name]
    assert set(recorded) == set(PLAIN)
    compare(ours(log_of(case)), recorded)
