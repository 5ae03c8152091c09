"""Our estimators against the Open Bandit Pipeline's: recorded values always, the package itself where it is there."""

import json
import warnings
from importlib.util import find_spec

import pytest

from ragbandit.router.offline.estimation.estimators import Estimator, normal
from tests.support.logs.estimates import estimate
from tests.support.logs.obp_values import CASES, PLAIN, RECORDED, Case, log_of, obp_inputs, values_of

_LIVE = (
    *CASES,
    Case(seed=11, rows=2000, arms=5, skew=5.0, binary=True),
    Case(seed=12, rows=1000, arms=8, skew=3.0, binary=False, deterministic=True),
)

needs_obp = pytest.mark.skipif(
    find_spec("obp") is None, reason="obp is not installed (it asks for Python below 3.11): recorded values only"
)


@pytest.fixture(scope="module")
def ope():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from obp import ope
    return ope


def ours(log):
    """What `values_of` tells of OBP, from our functions."""
    plain = {name: log[name] for name in ("action", "logged", "candidate")}
    modelled = plain | {"predicted": log["predicted"]}
    found = {}
    for name in PLAIN:
        arguments = modelled if Estimator(name=name).facts.needs_model else plain
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


@needs_obp
@pytest.mark.parametrize("case", _LIVE, ids=lambda case: case.name)
def test_live_values(case):
    """The same holds against the package itself, on more logs."""
    log = log_of(case)
    compare(ours(log), values_of(log))


@needs_obp
def test_snips_interval_differs(ope):
    """OBP's bootstrap of SNIPS keeps the mean weight fixed, so it is as wide as that of IPS; ours is of the ratio."""
    log = log_of(Case(seed=21, rows=1000, arms=3, skew=3.0, binary=True))
    log["reward"] = 0.8 + 0.2 * log["reward"]
    inputs = obp_inputs(log)
    theirs = ope.SelfNormalizedInverseProbabilityWeighting().estimate_interval(
        **inputs, n_bootstrap_samples=500, random_state=1
    )
    plain = {name: log[name] for name in ("action", "logged", "candidate")}
    snips, ips = (estimate(name, log["reward"], **plain) for name in ("snips", "ips"))
    low, high = normal(snips.value, standard_error=snips.standard_error, confidence=0.95)
    wide_low, wide_high = normal(ips.value, standard_error=ips.standard_error, confidence=0.95)

    width = theirs["95.0% CI (upper)"] - theirs["95.0% CI (lower)"]
    assert width == pytest.approx(wide_high - wide_low, rel=0.2)
    assert width > 3.0 * (high - low)


@needs_obp
def test_replay_is_no_estimate_of_a_stochastic_candidate(ope):
    """OBP's ReplayMethod keeps the rows that the candidate plays for certain: of a stochastic one none, value 0."""
    log = log_of(CASES[0])

    assert ope.ReplayMethod().estimate_policy_value(**obp_inputs(log)) == 0.0
    plain = {name: log[name] for name in ("action", "logged", "candidate")}
    assert estimate("ips", log["reward"], **plain).value > 0.4
