"""Drifting arms of a ledger: when the rewards of an arm changed, and how many questions have gone to it since."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from sqlalchemy import func, select

from ragbandit.router.learning.monitoring.diagnosis import Diagnosis
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.tables import decisions, updates
from ragbandit.shared.texts.formats import percent, rough_count

#: an arm "got better" or "got worse" if the means of its rows after the drift and of at most _FORMER rows before it
#: differ by more than _SURE standard errors; else, or with fewer than _FEWEST rows on a side, it "has changed"
_FORMER, _FEWEST, _SURE = 100, 5, 2.0
#: number of newest updates that are searched for rows of a drifting arm, and largest number of questions counted
_LOOKED_AT: Final = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change of an arm. The means of a period that contains a change mix the times before and after it."""

    at: float
    """Time of the change, seconds since 1970."""
    arm: str
    """The arm that changed; of a safe start that ended, its incumbent."""
    what: str
    """What changed, in words."""


def drifts_of(connection: Connection, learning: Diagnosis | None, *, label: str) -> list[Change]:
    """The changes of a ledger's drifting arms: when, in which direction, and the arm's share since then."""
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
        what = f"{arm} {word} {_since(connection, arm, time=at, label=label)}"
        found.append(Change(at=at, arm=arm, what=what))
    return found


def _direction(before: list[float], *, after: list[float]) -> str:
    if len(after) >= _FEWEST and len(before) >= _FEWEST:
        gap = float(np.mean(after) - np.mean(before))
        error = math.sqrt(np.var(after) / len(after) + np.var(before) / len(before))
        if abs(gap) > _SURE * error:
            return "got better" if gap > 0.0 else "got worse"
    return "has changed"


def _since(connection: Connection, arm: str, *, time: float, label: str) -> str:
    later = select(decisions.c.arm).where(
        decisions.c.made_at > time, decisions.c.policy == label, decisions.c.turn_of.is_(None)
    )
    newest = later.order_by(decisions.c.made_at.desc()).limit(_LOOKED_AT).subquery()
    grouped = select(newest.c.arm, func.count().label("questions")).group_by(newest.c.arm)
    counts: dict[str, int] = {row.arm: row.questions for row in connection.execute(grouped).all()}
    questions = sum(counts.values())
    if not questions:
        return "just now"
    share = percent(round(counts.get(arm, 0) / questions, 2))
    if questions == _LOOKED_AT:
        return f"at least {_LOOKED_AT:,} questions ago; {share} of the newest ones go to it"
    return f"{rough_count(questions, 'question')} ago; since then {share} of the questions go to it"
