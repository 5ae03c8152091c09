"""Rows of `waiting`: the decisions that each ledger has not closed, and the flags that say what they have by now."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, RowMapping, delete, exists, func, literal, select

from ragbandit.router.storage.sql.bulk_insert import Row, insert_into, run
from ragbandit.router.storage.sql.counters import Moves, counting
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, feedback, outcomes, waiting
from ragbandit.shared.types import Decision

_LOCKED: Final = (
    f"SELECT {', '.join(waiting.columns.keys())} FROM waiting WHERE decision_id IN ?"  # noqa: S608 # names of ours
    " ORDER BY decision_id, policy FOR UPDATE"
)
#: decisions that one transaction flags
_BATCH: Final = 200
_FED: Final = exists().where(feedback.c.decision_id == decisions.c.id)
#: flag -> whether a decision has it, by all that is stored; the learner takes back what it cannot use
_STORED: Final = {
    "has_outcome": exists().where(outcomes.c.decision_id == decisions.c.id),
    "has_feedback": _FED.where(feedback.c.value != "null"),
    "has_reward": _FED.where(feedback.c.kind == "reward", feedback.c.value != "null"),
}


def lock_rows(connection: Connection, *where: ColumnElement[bool]) -> list[RowMapping]:
    """Rows of `waiting`, locked in the order of ids: two writers never wait for each other in a circle."""
    query = select(waiting).where(*where).order_by(waiting.c.decision_id, waiting.c.policy)
    return list(connection.execute(query.with_for_update()).mappings())


def lock_waiting(connection: Connection, ids: set[str]) -> dict[tuple[str, str], Row]:
    """The rows of these decisions by (decision, label), locked."""
    locked = run(connection, _LOCKED, sorted(ids)) if ids else []
    return {(row["decision_id"], row["policy"]): row for row in locked}


def take_out(connection: Connection, *where: ColumnElement[bool], moves: Moves) -> Sequence[RowMapping]:
    """Delete rows of `waiting`; as they were."""
    lock_rows(connection, *where)
    gone = connection.execute(delete(waiting).where(*where).returning(waiting)).mappings().all()
    moves.waiting(gone, sign=-1)
    return gone


def flag_waiting(connection: Connection, rows: Iterable[Row], *, moves: Moves, **flags: bool) -> None:
    """Set flags of these locked rows of `waiting`.

    No other row: one that a new label inherits at this moment is not counted here, its label looks again itself.
    """
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        by_label.setdefault(row["policy"], []).append(row)
    for label, group in by_label.items():
        ids = [row["decision_id"] for row in group]
        changed = ", ".join(f"{name} = ?" for name in flags)
        statement = f"UPDATE waiting SET {changed} WHERE policy = ? AND decision_id IN ?"  # noqa: S608 # names of ours
        run(connection, statement, *flags.values(), label, ids)
        moves.flagged(group, **flags)


def flag_as_stored(connection: Connection, rows: Iterable[RowMapping], *, moves: Moves) -> None:
    """Set the flags of these locked rows of one label as outcomes and feedback say that are stored now."""
    before = {row["decision_id"]: row for row in rows}
    query = select(decisions.c.id, *(flag.label(name) for name, flag in _STORED.items()))
    for row in connection.execute(query.where(decisions.c.id.in_(before))).mappings():
        flags = {name: bool(row[name]) for name in _STORED}
        if any(flags[name] != bool(before[row["id"]][name]) for name in _STORED):
            flag_waiting(connection, [before[row["id"]]], moves=moves, **flags)


def flag_again(database: Database, *, label: str) -> int:
    """Let the learner look again at decisions whose feedback it has left out; how many. In transactions of a batch."""
    after, count = "", 0
    left_out = exists().where(feedback.c.decision_id == waiting.c.decision_id)
    while True:
        with counting(database) as (connection, moves):
            here = waiting.c.policy == label, ~waiting.c.has_feedback, waiting.c.decision_id > after, left_out
            ids = select(waiting.c.decision_id).where(*here).order_by(waiting.c.decision_id).limit(_BATCH)
            rows = lock_rows(connection, waiting.c.policy == label, waiting.c.decision_id.in_(ids))
            flag_as_stored(connection, rows, moves=moves)
        if not rows:
            return count
        after, count = rows[-1]["decision_id"], count + len(rows)


def add_stored(connection: Connection, *where: ColumnElement[bool], label: str, moves: Moves) -> set[str]:
    """Let stored decisions wait for a label, unless they do; their ids. where: conditions on `decisions`."""
    of = decisions.c
    columns = {"policy": literal(label), "decision_id": of.id, "decided_at": of.made_at, "run_by": of.run_by, **_STORED}
    stored = select(*columns.values()).select_from(decisions).where(*where)
    insert = insert_into(connection, waiting).from_select(list(columns), stored)
    rows = connection.execute(insert.on_conflict_do_nothing().returning(waiting)).mappings().all()
    moves.waiting(rows)
    return {row["decision_id"] for row in rows}


def reset_feedback_flags(connection: Connection, read: Mapping[str, int], *, label: str, moves: Moves) -> None:
    """Let decisions count as without feedback, none of which may be learned; they are not looked at again for it.

    read: how many feedback rows of each were looked at. One that has more by now keeps its flags.
    """
    if not read:
        return
    rows = lock_rows(connection, waiting.c.policy == label, waiting.c.decision_id.in_(read))
    counts = select(feedback.c.decision_id, func.count()).where(feedback.c.decision_id.in_(read))
    now = {row[0]: int(row[1]) for row in connection.execute(counts.group_by(feedback.c.decision_id))}
    same = [row for row in rows if now.get(row["decision_id"], 0) == read[row["decision_id"]]]
    flag_waiting(connection, same, moves=moves, has_feedback=False, has_reward=False)


def waiting_row(decision: Decision, *, label: str) -> dict[str, Any]:
    """The row of `waiting` of a new decision."""
    of = {"decision_id": decision.id, "decided_at": decision.made_at, "run_by": decision.run_by}
    return {"policy": label, **of, **dict.fromkeys(_STORED, False)}


def labels_in_use(connection: Connection, *, label: str) -> set[str]:
    """The ledgers that a new decision waits for: this one and all registered ones, without the retired ones.

    Call it after the decision was inserted: a label that is registered meanwhile looks for older transactions.
    """
    known = run(connection, "SELECT label, retired_at IS NULL AS in_use FROM policies")
    return ({label} | {row["label"] for row in known}) - {row["label"] for row in known if not row["in_use"]}


def number_transaction(connection: Connection) -> None:
    """Let PostgreSQL give this transaction its number now, not at its first write.

    A label that inherits these decisions looks again when all transactions with lower numbers have ended.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_current_xact_id()")
