"""Rows of `held_feedback`: feedback that a ledger does not learn, as the learner reads and writes them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from ragbandit.router.storage.sql.tables import held_feedback

__all__ = ["HELD", "HeldRow", "hold", "states_of"]

#: reason of a decision that was closed while all its feedback was held
HELD: Final = "its feedback is held"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldRow:
    """A feedback that is to be held."""

    feedback_id: str
    decision_id: str
    source: str
    reason: str


def states_of(connection: Connection, ids: Iterable[str], *, label: str) -> dict[str, bool]:
    """Feedback of these decisions that is held or was -> whether it was released."""
    query = select(held_feedback.c.feedback_id, held_feedback.c.released_at)
    query = query.where(held_feedback.c.policy == label, held_feedback.c.decision_id.in_(list(ids)))
    return {row.feedback_id: row.released_at is not None for row in connection.execute(query)}


def hold(connection: Connection, rows: Sequence[HeldRow], *, label: str, now: float) -> int:
    """Hold feedback; how many were not held before."""
    if not rows:
        return 0
    values = [
        {
            "policy": label,
            "feedback_id": row.feedback_id,
            "decision_id": row.decision_id,
            "source": row.source[:160],
            "reason": row.reason,
            "held_at": now,
        }
        for row in rows
    ]
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(held_feedback).values(values).on_conflict_do_nothing()
    return len(connection.execute(statement.returning(held_feedback.c.feedback_id)).all())
