"""Forecast of a report: how many times the questions so far its verdict takes."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ragbandit.router.comparison import FARTHEST, NOT_KNOWN, verdict_of
from ragbandit.shared.confidence_sequences import asymptotic_width
from ragbandit.shared.types import Vector

#: multiples of the questions so far at which the verdict is computed
_MULTIPLES: Final = tuple(np.geomspace(1.02, FARTHEST, 60).tolist())
#: the interval narrows at most this number of times as fast as it did
_FASTEST: Final = 4.0


@dataclass(frozen=True, kw_only=True)
class MeanInterval:
    """An interval of a mean difference, and what it was computed from."""

    rows: Vector  #: differences, the newest first, shape (n,)
    middle: float
    below: float  #: standard error of the low end
    above: float  #: standard error of the high end
    effective: float
    alpha: float
    tightest_at: float
    margin: float  #: added to both sides

    @cached_property
    def variance(self) -> float:
        """Variance of the mean of the rows; a forecast asks for it at each of its multiples."""
        return float(self.rows.var(ddof=1)) / len(self.rows)

    @property
    def low(self) -> float:
        return self.middle - self._times(self.effective) * self.below - self.margin

    @property
    def high(self) -> float:
        return self.middle + self._times(self.effective) * self.above + self.margin

    def _times(self, effective: float) -> float:
        return asymptotic_width(effective, alpha=self.alpha, tightest_at=self.tightest_at) * math.sqrt(effective)

    def after(self, multiple: float, *, heavier: float) -> tuple[float, float]:
        """Low and high end after `multiple` times the rows, if the mean stays.

        heavier: variance of a new row, as a multiple of the variance of the rows so far
        """
        variance = self.variance
        later = variance * (1.0 + heavier * (multiple - 1.0)) / multiple**2
        rate = min(1.0 / heavier, _FASTEST) if heavier > 0.0 else _FASTEST
        times = self._times(self.effective * (1.0 + rate * (multiple - 1.0)))
        # What unseen rows may add falls like 1 / rows.
        below, above = (math.sqrt(later) + (end - math.sqrt(variance)) / multiple for end in (self.below, self.above))
        return self.middle - times * below - self.margin, self.middle + times * above + self.margin


def outlook(
    drawn: tuple[MeanInterval, MeanInterval] | None,
    *,
    best: MeanInterval | None,
    worst: MeanInterval | None,
    odds: Vector,
) -> float | None:
    """How many times the questions so far a verdict takes; None if it is more than FARTHEST, or not known.

    drawn: intervals from the values of controls, for the low end and for the high end
    best, worst: intervals if the controls had their best and worst possible values; they give the low and the high end
    odds: mean squared weight of a question as a control, (1 - p)^2 / p, the newest first, shape (n,). The newer half
        gives the variance of new rows
    """
    mean = float(odds.mean())
    if mean <= 0.0 or (drawn is None and best is None and worst is None):
        return None
    heavier = float(odds[: max(len(odds) // 2, 1)].mean()) / mean
    for multiple in _MULTIPLES:
        low, high = -math.inf, math.inf
        if drawn is not None:
            low, high = (ends.after(multiple, heavier=heavier)[place] for place, ends in enumerate(drawn))
        low = low if best is None else max(low, best.after(multiple, heavier=1.0)[0])
        high = high if worst is None else min(high, worst.after(multiple, heavier=1.0)[1])
        if verdict_of(low, high) != NOT_KNOWN:
            return float(multiple)
    return None
