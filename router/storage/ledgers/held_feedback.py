"""Held feedback: stored, and not learned by a ledger until somebody releases it.

A decision whose feedback is all held waits on as one without feedback, or is closed with the reason HELD when its time
is over. Releasing lets it be learned: one that waits at once, one that was closed so after it was opened again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, and_, delete, func, select, update

from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import feedback_value
from ragbandit.router.storage.rows.held_rows import HELD
from ragbandit.router.storage.sql.counters import Moves, moving
from ragbandit.router.storage.sql.tables import (
    closures,
    decisions,
    feedback,
    held_feedback,
    updates,
    waiting,
)
from ragbandit.router.storage.sql.waiting import add_stored, flag_as_stored, lock_rows
from ragbandit.shared.errors import NotFound
from ragbandit.shared.types import Feedback

#: feedback that one transaction releases
_BATCH: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldFeedback:
    """A feedback that a ledger does not learn."""

    feedback_id: str
    decision_id: str
    #: "key:PUBLIC_ID", "tenant:NAME" or "rater:NAME"
    source: str
    #: "influence", or "quarantine N"
    reason: str
    held_at: float
    #: None: it is held
    released_at: float | None
    released_by: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """What became of feedback that was released."""

    #: all of it
    feedback: int = 0
    #: decisions that wait to be learned now
    waiting: int = 0
    #: of these, the ones that had been closed
    reopened: int = 0
    #: decisions that were learned from other feedback, or are gone: nothing changes
    unchanged: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedUpdate:
    """What the window of influence knows of an update."""

    #: rows that it counts as
    weight: float
    #: when the last feedback that made it came in
    at: float
    tenant: str
    feedback: tuple[Feedback, ...]


def held(
    ledger: Ledger, *, source: str | None = None, feedback_id: str | None = None, limit: int = 100
) -> list[HeldFeedback]:
    """Feedback that this ledger holds, the newest first: a range of an index, however much was ever held."""
    query = select(*_columns()).where(_chosen(ledger, source=source, feedback_id=feedback_id))
    with ledger.database.read() as connection:
        rows = connection.execute(query.order_by(held_feedback.c.held_at.desc()).limit(limit)).mappings()
        return [HeldFeedback(**row) for row in rows]


def sources_held(ledger: Ledger) -> dict[str, int]:
    """Source -> feedback of it that is held, the largest number first."""
    query = select(held_feedback.c.source, func.count().label("count")).where(_chosen(ledger))
    with ledger.database.read() as connection:
        rows = connection.execute(query.group_by(held_feedback.c.source)).all()
    return dict(sorted(((row[0], int(row[1])) for row in rows), key=lambda one: (-one[1], one[0])))


def release(
    ledger: Ledger,
    *,
    actor: str,
    now: float,
    source: str | None = None,
    feedback_id: str | None = None,
    reason: str | None = None,
    some: bool = True,
) -> Released:
    """Let the ledger learn what it holds of a source, one feedback, or what it holds for a reason.

    In batches, each with its entry of the audit log. Raises NotFound where nothing is held, but for some=False.
    """
    total = Released()
    chosen = _chosen(ledger, source=source, feedback_id=feedback_id, reason=reason)
    target = source or feedback_id or reason or "all"
    while True:
        with ledger.database.write() as connection, moving(connection, shard=ledger.database.shard) as moves:
            query = select(held_feedback.c.feedback_id, held_feedback.c.decision_id).where(chosen)
            rows = connection.execute(query.order_by(held_feedback.c.decision_id).limit(_BATCH)).all()
            if rows:
                done = _release(connection, ledger, rows, moves=moves, actor=actor, now=now)
                facts = {"label": ledger.label, "feedback": done.feedback, "reopened": done.reopened}
                record(connection, actor=actor, action="feedback.release", target=target, facts=facts, now=now)
                total = _sum(total, done)
        if not rows:
            break
    if some and not total.feedback:
        raise NotFound("nothing of that is held", field="source", remedy="`ragbandit feedback held` shows what is")
    return total


def _release(
    connection: Connection, ledger: Ledger, rows: Sequence[Any], *, moves: Moves, actor: str, now: float
) -> Released:
    ids, label = sorted({row.decision_id for row in rows}), ledger.label
    # Before anything else is locked: as feedback and the learner do.
    open_rows = lock_rows(connection, waiting.c.policy == label, waiting.c.decision_id.in_(ids))
    mine = held_feedback.c.policy == label, held_feedback.c.feedback_id.in_([row.feedback_id for row in rows])
    changed = update(held_feedback).where(*mine, held_feedback.c.released_at.is_(None))
    count = connection.execute(changed.values(released_at=now, released_by=actor[:128])).rowcount
    moves.add("held", -count, label=label)
    flag_as_stored(connection, open_rows, moves=moves)
    closed = sorted({*ids} - {row["decision_id"] for row in open_rows})
    reopened = _reopen(connection, label=label, ids=closed, moves=moves)
    both = len(open_rows) + reopened
    return Released(feedback=count, waiting=both, reopened=reopened, unchanged=len(ids) - both)


def _reopen(connection: Connection, *, label: str, ids: Sequence[str], moves: Moves) -> int:
    """Let decisions that were closed since all their feedback was held wait again; how many."""
    theirs = closures.c.policy == label, closures.c.decision_id.in_(ids), closures.c.reason == HELD
    gone = connection.execute(select(closures).where(*theirs)).mappings().all()
    if not gone:
        return 0
    keys = [row["decision_id"] for row in gone]
    here = add_stored(connection, decisions.c.id.in_(keys), label=label, moves=moves)  # what is gone stays closed
    connection.execute(delete(closures).where(*theirs[:2], closures.c.decision_id.in_(sorted(here))))
    moves.closures([row for row in gone if row["decision_id"] in here], sign=-1)
    return len(here)


def _sum(one: Released, other: Released) -> Released:
    return Released(
        feedback=one.feedback + other.feedback,
        waiting=one.waiting + other.waiting,
        reopened=one.reopened + other.reopened,
        unchanged=one.unchanged + other.unchanged,
    )


def _columns() -> list[Any]:
    return [column for column in held_feedback.columns if column.name != "policy"]


def _chosen(
    ledger: Ledger, *, source: str | None = None, feedback_id: str | None = None, reason: str | None = None
) -> Any:
    conditions = [held_feedback.c.policy == ledger.label, held_feedback.c.released_at.is_(None)]
    if source is not None:
        conditions.append(held_feedback.c.source == source)
    if feedback_id is not None:
        conditions.append(held_feedback.c.feedback_id == feedback_id)
    if reason is not None:
        conditions.append(held_feedback.c.reason == reason)
    return and_(*conditions)


def judged_lately(ledger: Ledger, *, limit: int, among: int | None = None) -> list[JudgedUpdate]:
    """The newest judged updates of a ledger that count as more than no row, in its order.

    among: only so many of the newest updates, judged or not, are looked at.
    """
    columns = updates.c.sample_weight, updates.c.feedback_at, updates.c.decision_id, updates.c.feedback_ids
    query = select(*columns, decisions.c.tenant).join_from(updates, decisions, decisions.c.id == updates.c.decision_id)
    query = query.where(updates.c.policy == ledger.label, updates.c.source == "explicit", updates.c.sample_weight > 0)
    with ledger.database.read() as connection:
        if among is not None:
            query = query.where(updates.c.seq > ledger.last_seq(connection=connection) - among)
        newest = query.order_by(updates.c.seq.desc()).limit(limit)
        rows = connection.execute(newest).all()
        theirs = feedback.c.decision_id.in_(select(newest.subquery().c.decision_id))
        notes = select(feedback).where(theirs)
        notes_of: dict[str, list[Any]] = {}
        for note in connection.execute(notes.order_by(feedback.c.id)).mappings():
            notes_of.setdefault(note["decision_id"], []).append(note)
    return [_judged(row, notes_of.get(row.decision_id, [])) for row in reversed(rows)]


def _judged(row: Any, notes: Iterable[Any]) -> JudgedUpdate:
    # The ids are a JSON list: whether one is in it needs no reading of it.
    used = tuple(feedback_value(note) for note in notes if f'"{note["id"]}"' in row.feedback_ids)
    return JudgedUpdate(weight=row.sample_weight, at=float(row.feedback_at or 0.0), tenant=row.tenant, feedback=used)
