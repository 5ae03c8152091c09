"""Detects that an arm has changed, although nobody declared it, from the prediction errors of its newest rows.

For every row of an arm, r is the prediction error, in standard deviations of the arm's latest errors, and u is the
prediction, in standard deviations from the arm's mean prediction. The test watches four numbers,

    x = r, -r, r u, -r u:

a rise or fall of rewards, and a stronger or weaker relation to the predictions, because a new model may keep the mean
reward but change which questions it answers well. Without a change, every x varies around its mean m, which is
estimated by the mean over the latest rows, or by 0 if that is larger, because prediction errors approach 0 as the model
learns. d is half the standard error of the estimate. A bet of size b on larger values of x has the wealth W. Every row
adds a new bet with the wealth 1:

    W <- (W + 1) * (1 + b * (x - m - d))

So the expected wealth after n rows of an unchanged arm is at most n, for any distribution of x. The arm counts as
changed if the mean wealth of all bets reaches a limit N (the param `alarm`). For an unchanged arm this takes at least N
rows on average (Shiryaev 1963; Roberts 1966; as an e-detector: Shin, Ramdas and Rinaldo 2024, "E-detectors").
docs/drift.md has measured results. Wealths are sums and products only, so they are equal, bit by bit, on all machines.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ragbandit.shared.types import ArmName, Json

#: bets as (index of x, size b)
_BETS: Final = ((0, 0.1), (0, 0.4), (1, 0.1), (1, 0.4), (2, 0.2), (3, 0.2))
#: bounds of x, which limit the loss of a bet and prevent alarms by a single row
_LEAST, _MOST = -2.0, 4.0
#: larger absolute prediction errors are clipped, so that one extreme row does not hide the following rows
_MOST_RESIDUAL: Final = 10.0
_MOST_PREDICTED: Final = 1.5
_LEAST_FACTOR: Final = 0.02
_MOST_WEALTH: Final = 1e15
#: the first _YOUNG rows of an arm do not count in the means m; bets start after _WARM_UP further rows
_YOUNG, _WARM_UP = 50, 50
#: number of latest rows in the means m (_REFERENCE_ROWS) and in the variance of the errors (_VARIANCE_ROWS)
_REFERENCE_ROWS, _VARIANCE_ROWS = 1000, 200
#: prior of the variance of the errors: this number of virtual rows with variance 1
_PRIOR_ROWS: Final = 10
#: lower limit of the variance of the errors, for arms that are nearly always right
_LEAST_VARIANCE: Final = 0.25


@dataclass(slots=True)
class _ArmTest:
    rows: int = 0
    #: variance of the prediction errors, relative to the noise variance of all arms
    variance: float = 1.0
    predicted: float = 0.0  #: mean of the predictions
    spread: float = 0.0  #: variance of the predictions
    means: list[float] = field(default_factory=lambda: [0.0] * 4)  #: mean m of each of the four numbers x
    wealth: list[float] = field(default_factory=lambda: [0.0] * len(_BETS))  #: wealth of each bet in _BETS

    def learn(self, residual: float, *, predicted: float, size: float) -> float:
        """Learn a row. Returns the mean wealth of all bets."""
        residual = min(max(residual, -_MOST_RESIDUAL), _MOST_RESIDUAL)
        xs, self.rows = self._numbers(residual, predicted=predicted), self.rows + 1
        latest, referred = min(self.rows, _REFERENCE_ROWS), min(self.rows - _YOUNG, _REFERENCE_ROWS)
        if referred > _WARM_UP:
            margin = 0.5 / math.sqrt(referred)
            for place, (index, bet) in enumerate(_BETS):
                factor = 1.0 + size * bet * (xs[index] - max(self.means[index], 0.0) - margin)
                wealth = (self.wealth[place] + 1.0) * max(factor, _LEAST_FACTOR)
                self.wealth[place] = min(wealth, _MOST_WEALTH)
        if referred > 0:
            self.means = [mean + (x - mean) / referred for mean, x in zip(self.means, xs, strict=True)]
        self.variance += (residual * residual - self.variance) / (min(self.rows, _VARIANCE_ROWS) + _PRIOR_ROWS)
        distance = predicted - self.predicted
        self.predicted += distance / latest
        self.spread += (distance * distance - self.spread) / latest
        return math.fsum(self.wealth) / len(_BETS)

    def _numbers(self, residual: float, *, predicted: float) -> list[float]:
        r = residual / math.sqrt(max(self.variance, _LEAST_VARIANCE))
        u = 0.0 if self.spread == 0.0 else (predicted - self.predicted) / math.sqrt(self.spread)
        limit = _MOST / _MOST_PREDICTED
        product = min(max(r, -limit), limit) * min(max(u, -_MOST_PREDICTED), _MOST_PREDICTED)
        return [min(max(x, _LEAST), _MOST) for x in (r, -r, product, -product)]


class ChangeTest:
    """The tests of all arms. alarm: smallest mean number of rows before a false alarm about an unchanged arm."""

    def __init__(self, *, alarm: float) -> None:
        self.alarm = alarm
        self._arms: dict[ArmName, _ArmTest] = {}

    def learn(self, arm: ArmName, residual: float, *, predicted: float, rows: float) -> bool:
        """Learn a row of an arm. Returns whether the arm has changed; its test then restarts.

        residual: the prediction error, in standard deviations of the prediction. predicted: posterior mean of the
            reward before the row. rows: weight of the row, > 0; below 1 its bets are smaller.
        """
        test = self._arms.setdefault(arm, _ArmTest())
        size = min(1.0, math.sqrt(rows))
        is_changed = test.learn(residual, predicted=predicted, size=size) >= self.alarm
        if is_changed:
            self.restart(arm)
        return is_changed

    def restart(self, arm: ArmName) -> None:
        self._arms.pop(arm, None)

    def state(self) -> dict[str, Json]:
        return {
            arm: [test.rows, test.variance, test.predicted, test.spread, *test.means, *test.wealth]
            for arm, test in sorted(self._arms.items())
        }

    def restore(self, state: Mapping[str, Sequence[Any]]) -> None:
        self._arms = {}
        for arm, (rows, variance, predicted, spread, *lists) in state.items():
            means, wealth = lists[:4], lists[4:]
            if len(wealth) != len(_BETS):
                raise ValueError(f"the state has {len(wealth)} bets on {arm!r}, not {len(_BETS)}")
            self._arms[ArmName(arm)] = _ArmTest(rows, variance, predicted, spread, means, wealth)
