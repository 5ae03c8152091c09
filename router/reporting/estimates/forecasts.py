"""Forecast of a report: questions that a verdict takes / questions so far (docs/estimates.md, step 9)."""

import math
from typing import Final

import numpy as np

from ragbandit.router.comparison import FARTHEST, NOT_KNOWN, verdict_of
from ragbandit.router.reporting.estimates.mean_intervals import Interval, MeanInterval
from ragbandit.shared.types import Vector

#: multiples of the questions so far at which the verdict is computed
MULTIPLES: Final = tuple(np.geomspace(1.02, FARTHEST, 32).tolist())
#: the rows of a forecast narrow the interval at most this number of times as fast as the rows so far
FASTEST: Final = 4.0


def after(ends: MeanInterval, multiple: float, *, heavier: float) -> Interval:
    """Low and high end after `multiple` times the rows, if the mean stays.

    heavier: variance of a new row, as a multiple of the variance of the rows so far
    """
    variance = ends.variance
    later = variance * (1.0 + heavier * (multiple - 1.0)) / multiple**2
    rate = min(1.0 / heavier, FASTEST) if heavier > 0.0 else FASTEST
    times = ends.times(ends.effective * (1.0 + rate * (multiple - 1.0)))
    # The part of an error for unseen rows falls like 1 / rows.
    below, above = (math.sqrt(later) + (end - math.sqrt(variance)) / multiple for end in (ends.below, ends.above))
    return ends.middle - times * below - ends.margin, ends.middle + times * above + ends.margin


def outlook(
    drawn: tuple[MeanInterval, MeanInterval] | None,
    *,
    best: MeanInterval | None,
    worst: MeanInterval | None,
    squared_weights: Vector,
) -> float | None:
    """Questions that a verdict takes / questions so far; None if this is more than FARTHEST, or not known.

    drawn: intervals from the values of controls, for the low end and for the high end
    best, worst: intervals if the arm had its best and its worst possible values, for the low end and for the high end
    squared_weights: mean squared weight of a question as a control, (1 - p)^2 / p, the newest first, shape (n,). The
        newer half gives the variance of new rows
    """
    mean = float(squared_weights.mean())
    if mean <= 0.0 or (drawn is None and best is None and worst is None):
        return None
    heavier = float(squared_weights[: max(len(squared_weights) // 2, 1)].mean()) / mean
    for multiple in MULTIPLES:
        low, high = -math.inf, math.inf
        if drawn is not None:
            low, high = (after(ends, multiple, heavier=heavier)[place] for place, ends in enumerate(drawn))
        low = low if best is None else max(low, after(best, multiple, heavier=1.0)[0])
        high = high if worst is None else min(high, after(worst, multiple, heavier=1.0)[1])
        if verdict_of(low, high) != NOT_KNOWN:
            return float(multiple)
    return None
