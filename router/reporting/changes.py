"""Changes in the rows of a report: an arm is new, its answers cost less or more, or a safe start ended.

The means of a period with a change mix the times before and after the change. So a report names the time of the
change, and the next report can begin there.
"""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from ragbandit.router.learning.monitoring.drifts import Change
from ragbandit.router.reporting.deciders import NEWEST, state_of
from ragbandit.router.reporting.reading import ReportRows
from ragbandit.shared.texts.formats import moment, money
from ragbandit.shared.types import Vector

#: an arm is new if it was first offered after at least this number of the period's questions
_BEFORE_NEW: Final = 50
#: a change of costs has at least this number of answers on both sides, this factor, and this many standard errors
_PRICED, _FACTOR, _CLEAR = 20, 2.5, 6.0
#: a sum that is above 0 by less is 0
_ROUNDING: Final = 1e-9


def changes_in(log: ReportRows) -> Iterator[Change]:
    """New arms, changed costs of an answer, and the end of a safe start. log: rows of a report, the newest first."""
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
    if log.held is not None and state_of(log.deciders) is None:
        yield from _end_of_safe_start(log, held=log.held)


def _end_of_safe_start(log: ReportRows, *, held: Vector) -> Iterator[Change]:
    """The first draw after the last NEWEST // 2 draws in a row of which a safe start decided more than half."""
    is_known, count = ~np.isnan(held), NEWEST // 2
    leads = np.convolve(held[is_known][::-1], np.ones(count), "valid") if is_known.sum() > count else held[:0]
    ends = np.flatnonzero(leads > _ROUNDING)
    if len(ends) and ends[-1] + 1 < len(leads):
        at = float(log.made_at[is_known][::-1][ends[-1] + count])
        arm = log.arms[np.bincount(log.arm[held > 0.0]).argmax()]
        what = f"the policy decides most questions from {moment(at)} on; before, a safe start with {arm} did"
        yield Change(at=at, arm=arm, what=what)


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
