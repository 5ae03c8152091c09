"""What an interval of a difference says, and how many rows would say it: pure arithmetic."""

import math
from typing import Literal

from router.errors import InvalidInput
from router.evaluation.intervals import Interval

__all__ = ["Verdict", "corrected", "rows_needed", "verdict"]

Verdict = Literal["better", "worse", "cannot tell"]

#: a promise of more rows than this is none
_MOST_ROWS = 1e9


def verdict(interval: Interval, *, margin: float = 0.0) -> Verdict:
    """What an interval of (candidate - other) says: whole above margin, whole below -margin, or neither.

    margin: least difference that matters, in units of reward, not negative.
    """
    low, high = interval
    if low > _checked(margin):
        return "better"
    return "worse" if high < -margin else "cannot tell"


def rows_needed(interval: Interval, *, value: float, rows: int, margin: float = 0.0) -> int | None:
    """About how many rows like these, in all, until an interval around this value leaves [-margin, margin].

    The side of the interval that has to pass the margin shrinks like 1 / sqrt(rows). None where it has passed already,
    where the value lies within the margin (more rows then tell nothing but that) or is not known, and above a billion.
    """
    if verdict(interval, margin=margin) != "cannot tell" or not abs(value) > margin:
        return None
    side = value - interval[0] if value > 0.0 else interval[1] - value
    needed = rows * (side / (abs(value) - margin)) ** 2
    return math.ceil(needed) if needed <= _MOST_ROWS else None


def corrected(confidence: float, *, comparisons: int) -> float:
    """Confidence of each of so many intervals with which all hold at once with the given one (Bonferroni)."""
    if not 0.0 < confidence < 1.0:
        raise InvalidInput(f"{confidence:g}", field="confidence", remedy="give a number between 0 and 1, as 0.95")
    if comparisons < 1:
        raise InvalidInput(f"{comparisons}", field="comparisons", remedy="count at least one")
    return 1.0 - (1.0 - confidence) / comparisons


def _checked(margin: float) -> float:
    if not 0.0 <= margin < math.inf:
        raise InvalidInput(f"{margin:g}", field="margin", remedy="give a difference of rewards, 0 or more")
    return margin
