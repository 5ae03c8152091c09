"""Rows of `waiting`: the decisions that each ledger has not closed, and the flags that say what they have by now."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select, update

from ragbandit.router.storage.sql.counters import Moves
from ragbandit.router.storage.sql.tables import feedback, policies, waiting
from ragbandit.shared.types import Decision

__all__ = ["calm", "flag_waiting", "labels_in_use", "lock_waiting", "number_transaction", "waiting_row"]


def lock_waiting(connection: Connection, ids: set[str]) -> dict[tuple[str, str], RowMapping]:
    """The rows of `waiting` of these decisions by (decision, label), locked.

    Always in the order of ids: two writers never wait for each other in a circle.
    """
    if not ids:
        return {}
    locked = connection.execute(
        select(waiting)
        .where(waiting.c.decision_id.in_(ids))
        .order_by(waiting.c.decision_id, waiting.c.policy)
        .with_for_update()
    ).mappings()
    return {(row["decision_id"], row["policy"]): row for row in locked}


def flag_waiting(connection: Connection, rows: Iterable[RowMapping], *, moves: Moves, **flags: bool) -> None:
    """Set flags of these locked rows of `waiting`.

    No other row: one that a new label inherits at this moment is not counted here, its label looks again itself.
    """
    by_label: dict[str, list[RowMapping]] = {}
    for row in rows:
        by_label.setdefault(row["policy"], []).append(row)
    for label, group in by_label.items():
        ids = [row["decision_id"] for row in group]
        here = waiting.c.policy == label, waiting.c.decision_id.in_(ids)
        connection.execute(update(waiting).where(*here).values(**flags))
        moves.flagged(group, **flags)


def calm(connection: Connection, read: Mapping[str, int], *, label: str, moves: Moves) -> None:
    """Let decisions count as without feedback, none of which may be learned; they are not looked at again for it.

    read: how many feedback rows of each were looked at. One that has more by now keeps its flags.
    """
    if not read:
        return
    here = waiting.c.policy == label, waiting.c.decision_id.in_(read)
    locked = select(waiting).where(*here).order_by(waiting.c.decision_id).with_for_update()
    rows = connection.execute(locked).mappings().all()
    counts = select(feedback.c.decision_id, func.count()).where(feedback.c.decision_id.in_(read))
    now = {row[0]: int(row[1]) for row in connection.execute(counts.group_by(feedback.c.decision_id))}
    same = [row for row in rows if now.get(row["decision_id"], 0) == read[row["decision_id"]]]
    flag_waiting(connection, same, moves=moves, has_feedback=False, has_reward=False)


def waiting_row(decision: Decision, *, label: str) -> dict[str, Any]:
    """The row of `waiting` of a new decision."""
    return {
        "policy": label,
        "decision_id": decision.id,
        "decided_at": decision.made_at,
        "run_by": decision.run_by,
        "has_outcome": False,
        "has_feedback": False,
        "has_reward": False,
    }


def labels_in_use(connection: Connection, *, label: str) -> set[str]:
    """The ledgers that a new decision waits for: this one and all that are known, but for those that are retired.

    To be asked after the decision was inserted: a label that is registered meanwhile looks for older transactions.
    """
    known = connection.execute(select(policies.c.label, policies.c.retired_at)).all()
    return ({label} | {row.label for row in known}) - {row.label for row in known if row.retired_at is not None}


def number_transaction(connection: Connection) -> None:
    """Let PostgreSQL give this transaction its number now, not at its first write.

    A label that inherits these decisions looks again when all transactions with lower numbers have ended.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_current_xact_id()")
