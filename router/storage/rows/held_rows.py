"""Rows of `held_feedback`: feedback that a ledger does not learn, as the learner reads and writes them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, select

from ragbandit.router.storage.rows.conversion import Form, TableRows
from ragbandit.router.storage.sql.bulk_insert import insert_into
from ragbandit.router.storage.sql.tables import held_feedback

#: reason of a decision that was closed while all its feedback was held
HELD: Final = "its feedback is held"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldRow:
    """A feedback that is to be held."""

    feedback_id: str
    decision_id: str
    source: str
    reason: str


_HELD: Final = TableRows(held_feedback, HeldRow, source=Form(write=lambda source: source[:160]))


def states_of(connection: Connection, ids: Iterable[str], *, label: str) -> dict[str, bool]:
    """Feedback of these decisions that is held or was -> whether it was released."""
    query = select(held_feedback.c.feedback_id, held_feedback.c.released_at)
    query = query.where(held_feedback.c.policy == label, held_feedback.c.decision_id.in_(list(ids)))
    return {row.feedback_id: row.released_at is not None for row in connection.execute(query)}


def hold(connection: Connection, rows: Sequence[HeldRow], *, label: str, now: float) -> int:
    """Hold feedback; how many were not held before."""
    if not rows:
        return 0
    values = [{"policy": label, "held_at": now, **_HELD.row(row)} for row in rows]
    statement = insert_into(connection, held_feedback).values(values).on_conflict_do_nothing()
    return len(connection.execute(statement.returning(held_feedback.c.feedback_id)).all())
