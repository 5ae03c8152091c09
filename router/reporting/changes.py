"""Changes within a period: an arm is new, the answers of an arm cost less or more, the rewards of an arm drifted.

A period with a change covers two worlds, and its means are of both: a report names the moment, from which on the next
one can begin.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from sqlalchemy import func, select

from ragbandit.router.learning.monitoring.diagnosis import Diagnosis
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.texts.formats import money, percent, rough_count
from ragbandit.shared.types import Vector

if TYPE_CHECKING:
    from ragbandit.router.reporting.reading import ReportRows

#: an arm is new if at least this number of questions of the period came before it was offered
_BEFORE_NEW: Final = 50
#: least number of answers before and after a change of costs, least factor, and least size in standard errors
_PRICED, _FACTOR, _CLEAR = 20, 2.5, 6.0
#: number of rows of an arm before its drift, least number before and after, and least size in standard errors, that
#: say whether it got better
_FORMER, _FEWEST, _SURE = 100, 5, 2.0
#: number of newest updates that are searched for rows of a drifting arm, and most questions that are counted since
_LOOKED_AT: Final = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change within the period, so that the period covers two worlds."""

    at: float
    """Its moment, seconds since 1970."""
    arm: str
    """The arm that changed."""
    what: str
    """What changed, in words."""


def changes_in(log: "ReportRows") -> Iterator[Change]:
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


def _changed_price(log: "ReportRows", *, place: int) -> Change | None:
    """The clearest change of the dollars of an arm's answers, as logarithms, if it is large."""
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
    """Number of values before the clearest change of their mean; _PRICED at least on both sides."""
    count = len(values)
    sizes = np.arange(1, count)
    sums = np.cumsum(values)[:-1]
    gaps = np.abs(sums / sizes - (values.sum() - sums) / (count - sizes)) * np.sqrt(sizes * (count - sizes))
    return _PRICED + int(gaps[_PRICED - 1 : count - _PRICED].argmax())


def drifts_of(connection: Connection, learning: Diagnosis | None, *, label: str) -> list[Change]:
    """Drifting arms of a ledger, with when their rewards changed and what followed."""
    if learning is None:
        return []
    found = []
    for arm in (arm for arm, one in learning.arms.items() if one.state == "drifting"):
        newest = select(updates.c.seq, updates.c.value, updates.c.decision_id).where(updates.c.policy == label)
        newest_rows = newest.order_by(updates.c.seq.desc()).limit(_LOOKED_AT).subquery()
        rows = select(newest_rows.c.value, decisions.c.made_at).join(
            decisions, decisions.c.id == newest_rows.c.decision_id
        )
        rows = rows.where(decisions.c.arm == arm).order_by(newest_rows.c.seq.desc())
        later = learning.judged.get(arm, 0)
        read = connection.execute(rows.limit(later + _FORMER)).all()
        if len(read) <= later:
            continue
        at = float(read[later - 1].made_at if later else read[0].made_at)
        word = _direction([row.value for row in read[later:]], after=[row.value for row in read[:later]])
        what = f"{arm} {word} {_since(connection, arm, at=at, label=label)}"
        found.append(Change(at=at, arm=arm, what=what))
    return found


def _direction(before: list[float], *, after: list[float]) -> str:
    if len(after) >= _FEWEST and len(before) >= _FEWEST:
        gap = float(np.mean(after) - np.mean(before))
        error = math.sqrt(np.var(after) / len(after) + np.var(before) / len(before))
        if abs(gap) > _SURE * error:
            return "got better" if gap > 0.0 else "got worse"
    return "has changed"


def _since(connection: Connection, arm: str, *, at: float, label: str) -> str:
    later = select(decisions.c.arm).where(
        decisions.c.made_at > at, decisions.c.policy == label, decisions.c.turn_of.is_(None)
    )
    newest = later.order_by(decisions.c.made_at.desc()).limit(_LOOKED_AT).subquery()
    grouped = select(newest.c.arm, func.count().label("questions")).group_by(newest.c.arm)
    counts: dict[str, int] = {row.arm: row.questions for row in connection.execute(grouped).all()}
    questions = sum(counts.values())
    if not questions:
        return "just now"
    share = percent(round(counts.get(arm, 0) / questions, 2))
    ago = f"more than {_LOOKED_AT:,} questions" if questions == _LOOKED_AT else rough_count(questions, "question")
    return f"{ago} ago; since then {share} of the questions go to it"
