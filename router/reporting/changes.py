"""Changes in the rows of a report: an arm is new, or the answers of an arm cost less or more.

The means of a period with a change mix the times before and after the change. So a report names the time of the
change, and the next report can begin there.
"""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from ragbandit.router.learning.monitoring.drifts import Change
from ragbandit.router.reporting.reading import ReportRows
from ragbandit.shared.texts.formats import money
from ragbandit.shared.types import Vector

#: an arm is new if it was first offered after at least this number of the period's questions
_BEFORE_NEW: Final = 50
#: a change of costs has at least this number of answers on both sides, this factor, and this many standard errors
_PRICED, _FACTOR, _CLEAR = 20, 2.5, 6.0


def changes_in(log: ReportRows) -> Iterator[Change]:
    """New arms, and changed costs of an answer. log: the rows of a report, the newest first."""
    for place, arm in enumerate(log.arms):
        offered = log.is_offered(place)
        if not offered.any():
            continue
        first = float(log.made_at[offered].min())
        earlier = log.made_at < first
        count = int(earlier.sum())
        if count >= _BEFORE_NEW and offered[~earlier].mean() > 0.5:
            yield Change(at=first, arm=arm, what=f"{arm} is new: it was offered first after {count:,} questions")
        change = _changed_price(log, place=place)
        if change is not None:
            yield change


def _changed_price(log: ReportRows, *, place: int) -> Change | None:
    """The clearest change in the logarithm of the dollars of an arm's answers; None if it is small."""
    dollars = log.costs["dollars"][::-1]
    priced = (log.arm[::-1] == place) & (dollars > 0.0)
    values, made_at = dollars[priced], log.made_at[::-1][priced]
    count = len(values)
    if count < 2 * _PRICED:
        return None
    logs = np.log(values)
    split = _split_of(logs)
    before, after = float(values[:split].mean()), float(values[split:].mean())
    spread = math.sqrt((logs[:split].var() * split + logs[split:].var() * (count - split)) / count)
    error = spread * math.sqrt(1.0 / split + 1.0 / (count - split))
    gap = abs(float(logs[split:].mean() - logs[:split].mean()))
    if gap < math.log(_FACTOR) or gap <= _CLEAR * error:
        return None
    prices = f"{money(after, 'dollars')} instead of {money(before, 'dollars')}"
    return Change(at=float(made_at[split]), arm=log.arms[place], what=f"an answer of {log.arms[place]} costs {prices}")


def _split_of(values: Vector) -> int:
    """Number of values before the clearest change of their mean; at least _PRICED values are on both sides."""
    count = len(values)
    sizes = np.arange(1, count)
    sums = np.cumsum(values)[:-1]
    gaps = np.abs(sums / sizes - (values.sum() - sums) / (count - sizes)) * np.sqrt(sizes * (count - sizes))
    return _PRICED + int(gaps[_PRICED - 1 : count - _PRICED].argmax())
