"""False alarms and detection of the test of sample ratios, in made worlds.

Three arms; the policy's pmf drifts, and follows the arms that were drawn. In a clean world every decision has an
outcome with .9 and is judged with a probability that hangs on the question and the time, and not on the arm. One looks
after every tenth decision. In a faulty world rows, outcomes or ratings of the second arm are lost.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ragbandit.router.learning.monitoring.sample_ratio import MATTERS, log_capital

ARMS: Final = 3
#: decisions between two looks
EVERY: Final = 10
_STAGES: Final = ("drawn", "ended", "judged")
#: name -> share of the second arm's rows that is lost, by stage
FAULTS: Final = {
    "none": (0.0, 0.0, 0.0),
    "10 % of its rows are lost": (0.1, 0.0, 0.0),
    "10 % of its outcomes are lost": (0.0, 0.1, 0.0),
    "its answers are rated 2/3 as often": (0.0, 0.0, 1 / 3),
    "its answers are rated 9 % instead of 61 %": (0.0, 0.0, 0.85),
}


def first_alarms(
    *, worlds: int, rows: int, lost: Sequence[float], rare: float, alpha: float, seed: int = 0
) -> npt.NDArray[np.float64]:
    """The decision at which each world alarms for the first time, shape (worlds,); inf: never within `rows`.

    rare: about the probability of the second arm.
    """
    rng = np.random.default_rng(seed)
    excess, spread = np.zeros((2, len(_STAGES), worlds, ARMS))
    drawn, first = np.ones((worlds, ARMS)), np.full(worlds, np.inf)
    for row in range(1, rows + 1):
        follows = 0.5 + drawn / drawn.sum(axis=1, keepdims=True) + 0.3 * math.sin(row / 300.0) * np.array([1, 0, -1])
        pmf = follows * rng.uniform(0.5, 1.5, follows.shape)
        pmf[:, 1] = 0.0
        pmf *= ((1.0 - rare) / pmf.sum(axis=1))[:, None]
        pmf[:, 1] = rare
        arm = (rng.random((worlds, 1)) > np.cumsum(pmf, axis=1)).sum(axis=1).clip(max=ARMS - 1)
        taken = np.eye(ARMS)[arm]
        drawn += taken
        rating = 0.61 * rng.beta(2.0, 1.0, worlds) * (1.0 if row % 700 < 400 else 0.3)
        stays = np.ones(worlds, dtype=bool)
        for stage, (share, loss) in enumerate(zip((np.ones(worlds), np.full(worlds, 0.9), rating), lost, strict=True)):
            stays = stays & (rng.random(worlds) < share * np.where(arm == 1, 1.0 - loss, 1.0))
            excess[stage] += stays[:, None] * (taken - pmf)
            spread[stage] += stays[:, None] * pmf * (1.0 - pmf)
        if row % EVERY == 0:
            first[np.isinf(first) & _alarms(excess, spread, alpha=alpha)] = row
    return first


def _alarms(excess: npt.NDArray[np.float64], spread: npt.NDArray[np.float64], *, alpha: float) -> npt.NDArray[np.bool_]:
    """Which worlds alarm at this look, shape (worlds,), by the rule of `sample_ratio.first_uneven_stage`."""
    capital = log_capital(excess.ravel(), variance=spread.ravel()).reshape(excess.shape)
    beyond = np.logaddexp.reduce(capital, axis=2) - math.log(ARMS) >= math.log(len(_STAGES) / alpha)
    matters = (np.abs(excess) >= np.array([0.0, MATTERS, MATTERS])[:, None, None] * spread).any(axis=2)
    return np.asarray((beyond & matters).any(axis=0))
