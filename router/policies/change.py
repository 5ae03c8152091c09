"""A test for a change of an arm that nobody declared: bets against the calibration of its newest rows.

Of every row of an arm, r is its residual in standard deviations of the arm's latest residuals, and u the value that
was predicted for it, in standard deviations about the arm's mean prediction. Four numbers are watched,

    x = r, -r, r u, -r u:

rewards that rise or fall, and predictions that are followed more or less than before: a new model may leave the mean as
it is and turn the ranking of the questions. While the arm stays as it is, every x varies about a mean m of its own. A
bet of size b that it is larger has the wealth W, and every row lets one more bet of 1 begin,

    W <- (W + 1) * (1 + b * (x - m - d)),

so that the wealth expected after n rows of an unchanged arm is at most n, whatever the distribution of x. Where the
mean of all wealths reaches N, the arm has changed; of an unchanged one that takes N rows or more on average
(Shiryaev 1963, Roberts 1966; as an e-detector: Shin, Ramdas and Rinaldo 2024, "E-detectors"). m is not known: it is the
mean over the latest rows, or 0 where that is less, since what the heads still miss goes to 0 as they learn; half its
standard error in d stands for what it misses. docs/drift.md has what that comes to. A wealth is made of sums and
products alone: the same bits on every machine.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ragbandit.shared.types import ArmName, Json

#: the bets: which x, and the size
_BETS: Final = ((0, 0.1), (0, 0.4), (1, 0.1), (1, 0.4), (2, 0.2), (3, 0.2))
#: x is within these: what a bet may lose is limited, and one row is not an alarm
_LEAST, _MOST = -2.0, 4.0
#: a residual is within this, so that one wild row does not hide all that follow
_MOST_RESIDUAL: Final = 10.0
#: u is within this, and r u within the bounds of x
_MOST_PREDICTED: Final = 1.5
#: least factor of a wealth
_LEAST_FACTOR: Final = 0.02
#: most wealth, far above every threshold
_MOST_WEALTH: Final = 1e15
#: an arm's first rows, whose posterior is too young to be a reference; rows of the reference before bets begin
_YOUNG, _WARM_UP = 50, 50
#: means are over this many of an arm's latest rows, the variance over so many, begun with _PRIOR_ROWS rows of 1
_REFERENCE_ROWS, _VARIANCE_ROWS, _PRIOR_ROWS = 1000, 200, 10
#: least variance of an arm's residuals, in that of all arms: it may be nearly always right
_LEAST_VARIANCE: Final = 0.25


@dataclass(slots=True)
class _Watched:
    """What is known of one arm."""

    rows: int = 0
    #: of the residuals, in variances of the heads' noise
    variance: float = 1.0
    #: mean and variance of the predictions
    predicted: float = 0.0
    spread: float = 0.0
    #: means of x; wealths of _BETS
    means: list[float] = field(default_factory=lambda: [0.0] * 4)
    wealth: list[float] = field(default_factory=lambda: [0.0] * len(_BETS))

    def learn(self, residual: float, *, predicted: float, size: float) -> float:
        """Take in one row; the mean wealth after it."""
        residual = min(max(residual, -_MOST_RESIDUAL), _MOST_RESIDUAL)
        xs, self.rows = self._numbers(residual, predicted=predicted), self.rows + 1
        latest, referred = min(self.rows, _REFERENCE_ROWS), min(self.rows - _YOUNG, _REFERENCE_ROWS)
        if referred > _WARM_UP:
            doubt = 0.5 / math.sqrt(referred)
            for place, (which, bet) in enumerate(_BETS):
                factor = 1.0 + size * bet * (xs[which] - max(self.means[which], 0.0) - doubt)
                wealth = (self.wealth[place] + 1.0) * max(factor, _LEAST_FACTOR)
                self.wealth[place] = min(wealth, _MOST_WEALTH)
        if referred > 0:
            self.means = [mean + (x - mean) / referred for mean, x in zip(self.means, xs, strict=True)]
        self.variance += (residual * residual - self.variance) / (min(self.rows, _VARIANCE_ROWS) + _PRIOR_ROWS)
        apart = predicted - self.predicted
        self.predicted += apart / latest
        self.spread += (apart * apart - self.spread) / latest
        return math.fsum(self.wealth) / len(_BETS)

    def _numbers(self, residual: float, *, predicted: float) -> list[float]:
        """The four x of a row, by what was known before it."""
        r = residual / math.sqrt(max(self.variance, _LEAST_VARIANCE))
        u = 0.0 if self.spread == 0.0 else (predicted - self.predicted) / math.sqrt(self.spread)
        most = _MOST / _MOST_PREDICTED
        product = min(max(r, -most), most) * min(max(u, -_MOST_PREDICTED), _MOST_PREDICTED)
        return [min(max(x, _LEAST), _MOST) for x in (r, -r, product, -product)]


class ChangeTest:
    """Every arm's test. alarm: N, rows that an unchanged arm learns before it is said to have changed, on average."""

    def __init__(self, *, alarm: float) -> None:
        self.alarm = alarm
        self._arms: dict[ArmName, _Watched] = {}

    def learn(self, arm: ArmName, residual: float, *, predicted: float, rows: float) -> bool:
        """Take in one row of an arm; whether the arm has changed, and its test restarts.

        residual: in standard deviations of its prediction. predicted: the reward's posterior mean before the row. rows:
        what it counts as (> 0); one that counts as less than 1 tells less, and is bet on with less.
        """
        watched = self._arms.setdefault(arm, _Watched())
        size = min(1.0, math.sqrt(rows))
        is_changed = watched.learn(residual, predicted=predicted, size=size) >= self.alarm
        if is_changed:
            self.restart(arm)
        return is_changed

    def restart(self, arm: ArmName) -> None:
        """Begin the arm's test anew."""
        self._arms.pop(arm, None)

    def state(self) -> dict[str, Json]:
        """Per arm its numbers."""
        return {
            arm: [one.rows, one.variance, one.predicted, one.spread, *one.means, *one.wealth]
            for arm, one in sorted(self._arms.items())
        }

    def restore(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Take over a saved state."""
        self._arms = {}
        for arm, (rows, variance, predicted, spread, *others) in state.items():
            means, wealth = others[:4], others[4:]
            if len(wealth) != len(_BETS):
                raise ValueError(f"{len(wealth)} bets on {arm!r}, not {len(_BETS)}")
            self._arms[ArmName(arm)] = _Watched(rows, variance, predicted, spread, means, wealth)
