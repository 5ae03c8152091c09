"""What tells a right log from a wrong one: exact variances, a bound that holds, and alarms that are seldom false."""

import itertools

import numpy as np
import pytest

from ragbandit.router.offline.estimation.bandit_log import ALPHA, ArmTally, WeightTally
from tests.support.logs.replay_logs import array_log as made_log


def drawn(pmf, *, random):
    """An arm per row, by its pmf."""
    return (random.random((len(pmf), 1)) > np.cumsum(pmf, axis=1)[:, :-1]).sum(axis=1)


def skewed(rows, *, random):
    """Pmfs of a log that has mostly made up its mind: one arm has nearly all, another one a hundredth or less."""
    pmf = random.dirichlet([8.0, 0.5, 0.5], size=rows)
    pmf = np.maximum(pmf, 0.005)
    return pmf / pmf.sum(axis=1, keepdims=True)


def weight_tally(log, candidate, *, pieces=1):
    """The tally of this candidate's weights, the log taken in pieces."""
    tally = WeightTally()
    for rows in np.array_split(np.arange(len(log)), pieces):
        tally.add(log.part(rows), candidate=candidate[rows])
    return tally


def arm_tally(log):
    tally = ArmTally()
    tally.add(log)
    return tally


# ----------------------------------------------------------------------------------------------------- exact variances


@pytest.mark.parametrize("unsupported_mass", [False, True])
def test_variance_of_the_weights_is_exact(unsupported_mass):
    """The variance of the summed weights is that over all possible draws, also with an unsupported arm."""
    logged = np.array([[0.6, 0.4, 0.0] if unsupported_mass else [0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]])
    candidate = np.array([[0.2, 0.3, 0.5], [0.9, 0.1, 0.0], [0.0, 0.0, 1.0]])
    chances, totals = [], []
    for action in itertools.product(range(3), repeat=3):
        places = np.arange(3), np.array(action)
        chance = float(np.prod(logged[places]))
        if chance > 0.0:
            chances.append(chance)
            totals.append(float((candidate[places] / logged[places]).sum()))
    mean = np.average(totals, weights=chances)
    tally = weight_tally(made_log(logged, action=[0, 2, 2]), candidate)
    assert tally.variance == pytest.approx(np.average((totals - mean) ** 2, weights=chances))
    assert mean == pytest.approx(3 - 0.5 * unsupported_mass) == pytest.approx(3 * (1.0 - tally.unsupported_mass))


# ---------------------------------------------------------------------------------------------------------- the bound


def test_right_logs_are_not_called_wrong():
    """None of 300 correct logs with skewed pmfs is called wrong with a skewed candidate, though all are close to it."""
    closest = np.inf
    for seed in range(300):
        random = np.random.default_rng(seed)
        logged, candidate = skewed(400, random=random), skewed(400, random=random)[:, ::-1]
        log = made_log(logged, action=drawn(logged, random=random))
        tally = weight_tally(log, candidate)
        assert all(arm_tally(log).plausible(alpha=ALPHA)), seed
        assert arm_tally(log).likely(alpha=ALPHA), seed
        assert tally.plausible(alpha=ALPHA), seed
        low, high = tally.mean_interval()
        closest = min(closest, 1.0 - low, high - 1.0)
    assert closest < 0.6 * (high - low), "the interval is so wide that nothing was tested"


@pytest.mark.parametrize("seed", range(10))
def test_swapped_pmfs_are_found(seed):
    """A log whose pmfs have two arms exchanged is called wrong, by the arms and by a candidate's weights."""
    random = np.random.default_rng(seed)
    logged = skewed(400, random=random)
    wrong = made_log(logged[:, [1, 0, 2]], action=drawn(logged, random=random))
    plausible = arm_tally(wrong).plausible(alpha=ALPHA)
    assert (plausible[0], plausible[1]) == (False, False)
    always = np.tile([1.0, 0.0, 0.0], (400, 1))
    assert not weight_tally(wrong, always).plausible(alpha=ALPHA)


@pytest.mark.parametrize("seed", range(10))
def test_pmfs_of_other_rows_are_found(seed):
    """A log whose pmfs stand one row too low is called wrong, though every arm was drawn as often as they say."""
    random = np.random.default_rng(seed)
    logged = random.dirichlet([0.5, 0.5, 0.5], size=400) * 0.94 + 0.02
    wrong = arm_tally(made_log(np.roll(logged, 1, axis=0), action=drawn(logged, random=random)))
    assert all(wrong.plausible(alpha=ALPHA))
    assert not wrong.likely(alpha=ALPHA)


# ---------------------------------------------------------------------------------------------------------- the tallies
