"""Verdict from the interval of a difference, and rows needed for one: pure arithmetic."""

import math
from typing import Literal

from ragbandit.router.errors import InvalidInput
from ragbandit.router.offline.estimation.intervals import Interval

__all__ = ["Verdict", "corrected", "rows_needed", "verdict"]

Verdict = Literal["better", "worse", "cannot tell"]


def verdict(interval: Interval) -> Verdict:
    """Verdict from an interval of (candidate - other): above 0, below 0, or neither."""
    low, high = interval
    if low > 0.0:
        return "better"
    return "worse" if high < 0.0 else "cannot tell"


def rows_needed(interval: Interval, *, value: float, rows: int) -> int | None:
    """About how many rows like these, in all, until an interval around this value leaves 0.

    The side of the interval that has to pass 0 shrinks like 1 / sqrt(rows). If the value is the true difference, so
    many rows settle it about every other time, as the value they give lies as often below as above the true one. None
    where 0 is passed already, and where the value is 0 or one of the numbers is not finite.
    """
    if verdict(interval) != "cannot tell" or not abs(value) > 0.0:
        return None
    times = (value - interval[0] if value > 0.0 else interval[1] - value) / abs(value)
    needed = rows * times * times
    return math.ceil(needed) if math.isfinite(needed) else None


def corrected(confidence: float, *, comparisons: int) -> float:
    """Confidence of each of so many intervals with which all hold at once with the given one (Bonferroni)."""
    if not 0.0 < confidence < 1.0:
        raise InvalidInput(f"{confidence:g}", field="confidence", remedy="give a number between 0 and 1, as 0.95")
    if comparisons < 1:
        raise InvalidInput(f"{comparisons}", field="comparisons", remedy="count at least one")
    return 1.0 - (1.0 - confidence) / comparisons
