"""Reads and writes rows of `waiting`: decisions that a ledger has neither learned nor closed, with three flags each.

All transactions lock tables in the order LOCK_ORDER, which prevents deadlocks. A transaction locks all its rows of a
table at once, in the order of their keys. No other transaction can lock rows that it has inserted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import ColumnElement, RowMapping, and_, delete, exists, func, literal, select, update

from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts, or_unfilled
from ragbandit.router.storage.sql.bulk_insert import Row, Rows, insert_into, send
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments
from ragbandit.router.storage.sql.database import overwrite_freed
from ragbandit.router.storage.sql.tables import decisions, feedback, jobs, outcomes, units, waiting
from ragbandit.shared.types import Decision, TaskTurn

#: order in which transactions lock rows of tables if they store decisions, outcomes or feedback, end tasks, or erase
LOCK_ORDER: Final = ("decisions", "units", "outcomes", "waiting", "feedback", "jobs", "counters")
#: condition for a column: it is one of some ids, or the decision of a turn among these. Takes the list of ids twice
WITH_FIRSTS: Final = "IN (? UNION ALL SELECT turn_of FROM decisions WHERE id IN ?)"
_turns = decisions.alias("turns")
#: later turns that workers have still to answer, and the column with the decision of each
OPEN_TURNS: Final = jobs.join(_turns, and_(jobs.c.kind == "answer", jobs.c.decision_id == _turns.c.id))
TURN_OF: Final = _turns.c.turn_of
#: reason of the closure of a decision whose task a budget ended: no ledger learns such a decision
STOPPED: Final = "a budget stopped the task"
_LOCKED: Final = (
    f"SELECT {', '.join(waiting.columns.keys())} FROM waiting WHERE decision_id {{}}"  # noqa: S608 # names of ours
    " ORDER BY decision_id, policy FOR UPDATE"
)
#: queries that lock the rows of decisions; the second one also the rows of the decisions of turns (WITH_FIRSTS)
LOCK_WAITING, LOCK_WAITING_WITH_FIRSTS = _LOCKED.format("IN ?"), _LOCKED.format(WITH_FIRSTS)
_HAS_FEEDBACK: Final = exists().where(feedback.c.decision_id == decisions.c.id)
#: flag -> condition on `decisions` under which it is set; the learner clears flags of feedback that it cannot use
_STORED: Final = {
    "has_outcome": exists().where(outcomes.c.decision_id == decisions.c.id),
    "has_feedback": _HAS_FEEDBACK.where(feedback.c.value != "null"),
    "has_reward": _HAS_FEEDBACK.where(feedback.c.kind == "reward", feedback.c.value != "null"),
}


def with_open_turn(connection: Connection, ids: Sequence[str]) -> set[str]:
    """The decisions among `ids` with a later turn that workers still have to answer."""
    return set(connection.execute(select(TURN_OF).select_from(OPEN_TURNS).where(TURN_OF.in_(ids))).scalars())


def lock_rows(connection: Connection, *where: ColumnElement[bool]) -> list[RowMapping]:
    """Lock rows of `waiting` in the order of ids, which prevents deadlocks."""
    query = select(waiting).where(*where).order_by(waiting.c.decision_id, waiting.c.policy)
    return list(connection.execute(query.with_for_update()).mappings())


def delete_waiting(connection: Connection, *where: ColumnElement[bool], tally: Increments) -> Sequence[RowMapping]:
    lock_rows(connection, *where)
    deleted = connection.execute(delete(waiting).where(*where).returning(waiting)).mappings().all()
    tally.count_waiting(deleted, sign=-1)
    return deleted


def flag_waiting(connection: Connection, rows: Iterable[Row], *, tally: Increments, **flags: bool) -> None:
    """Set flags of these locked rows of `waiting`. Rows inserted later get their flags from inheritance."""
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        by_label.setdefault(row["policy"], []).append(row)
    for label, group in by_label.items():
        ids = list(map(itemgetter("decision_id"), group))
        changed = " = ?, ".join(flags)
        statement = f"UPDATE waiting SET {changed} = ? WHERE policy = ? AND decision_id IN ?"  # noqa: S608 # names of ours
        send(connection, statement, *flags.values(), label, ids)
        tally.count_flags(group, **flags)


def flag_as_stored(connection: Connection, rows: Iterable[RowMapping], *, tally: Increments) -> None:
    """Set the flags of these locked rows, which have one policy label, from stored outcomes and feedback."""
    before = {row["decision_id"]: row for row in rows}
    query = select(decisions.c.id, *(flag.label(name) for name, flag in _STORED.items()))
    for row in connection.execute(query.where(decisions.c.id.in_(before))).mappings():
        flags = {name: bool(row[name]) for name in _STORED}
        if any(flags[name] != bool(before[row["id"]][name]) for name in _STORED):
            flag_waiting(connection, [before[row["id"]]], tally=tally, **flags)


def insert_missing_waiting(connection: Connection, *where: ColumnElement[bool], label: str, tally: Increments) -> None:
    """Insert the missing rows of `waiting` for stored decisions, except turns. where: conditions on `decisions`."""
    ends = select(func.max(units.c.until)).where(units.c.first == decisions.c.id).scalar_subquery()
    columns: dict[str, Any] = {"policy": literal(label), "decision_id": decisions.c.id, "open_until": ends}
    columns |= {"decided_at": decisions.c.made_at, "run_by": decisions.c.run_by, **_STORED}
    stored = select(*columns.values()).select_from(decisions).where(*where, decisions.c.turn_of.is_(None))
    insert = insert_into(connection, waiting).from_select(list(columns), stored)
    rows = connection.execute(insert.on_conflict_do_nothing().returning(waiting)).mappings().all()
    tally.count_waiting(rows)
    _set_ends_of_tasks(connection, [row["decision_id"] for row in rows if row["open_until"] is None], label=label)


def _set_ends_of_tasks(connection: Connection, ids: Sequence[str], *, label: str) -> None:
    """Set the ends of tasks whose row in `units` a later task replaced; the newest turn of a task has its end."""
    if not ids:
        return
    query = select(*decisions.c["id", "turn_of"], *FACT_COLUMNS).where(or_unfilled(decisions.c.task_until.is_not(None)))
    ends = dict[str, float]()
    for of_task in (decisions.c.id.in_(ids), decisions.c.turn_of.in_(ids)):
        for row in connection.execute(query.where(of_task).order_by(decisions.c.made_at)).mappings():
            until, first = QueriedFacts.of_row(row).task_until, row["turn_of"] or row["id"]
            if until is not None and (first == row["id"] or first in ends):
                ends[first] = until
    for key, until in ends.items():
        mine = update(waiting).where(waiting.c.policy == label, waiting.c.decision_id == key)
        connection.execute(mine.values(open_until=until))


def reset_feedback_flags(connection: Connection, counts: Mapping[str, int], *, label: str, tally: Increments) -> None:
    """Clear the feedback flags of decisions whose feedback may not be learned, so that they are not read again.

    counts: decision id -> number of feedback rows that were read; a decision that has more now keeps its flags
    """
    if not counts:
        return
    rows = lock_rows(connection, waiting.c.policy == label, waiting.c.decision_id.in_(counts))
    stored = select(feedback.c.decision_id, func.count()).where(feedback.c.decision_id.in_(counts))
    now = {row[0]: int(row[1]) for row in connection.execute(stored.group_by(feedback.c.decision_id))}
    unchanged = [row for row in rows if now.get(row["decision_id"], 0) == counts[row["decision_id"]]]
    flag_waiting(connection, unchanged, tally=tally, has_feedback=False, has_reward=False)


def waiting_row(decision: Decision, *, label: str) -> dict[str, Any]:
    columns = {"decision_id": decision.id, "decided_at": decision.made_at, "run_by": decision.run_by}
    task = TaskTurn.of(decision.facts)
    return {"policy": label, **columns, **dict.fromkeys(_STORED, False), "open_until": task and task.until}


def drop_answer_jobs(connection: Connection, ids: Collection[str], *, running: bool = True) -> Rows:
    """Send the deletion of jobs, in the transaction that stores outcomes or closes decisions. Returns a function that
    returns their decisions and estimates. running: whether claimed jobs are deleted, too.
    """
    if not ids:
        return list
    overwrite_freed(connection)  # a chat contains texts of users, which must not stay in free pages
    unclaimed = "" if running else " AND claimed_by IS NULL"
    deletion = f"DELETE FROM jobs WHERE kind = 'answer' AND decision_id IN ?{unclaimed}"  # noqa: S608 # text of ours
    return send(connection, f"{deletion} RETURNING decision_id, reserved", sorted(ids))


def labels_in_use(connection: Connection, *, label: str) -> Callable[[], set[str]]:
    """Send the query for the ledgers of a new decision: this one and all registered ones, without retired ones. Returns
    a function that returns their labels.

    Call this after the decision was inserted: a ledger that is registered later inherits it (ledgers/inheritance.py).
    """
    rows = send(connection, "SELECT label, retired_at IS NULL AS in_use FROM policies")

    def labels() -> set[str]:
        found = {label}
        for row in rows():
            (found.add if row["in_use"] else found.discard)(row["label"])
        return found

    return labels


def number_transaction(connection: Connection) -> None:
    """Let PostgreSQL number this transaction now instead of at its first write; see `inheritance._have_older_ended`."""
    if not connection.is_sqlite:
        send(connection, "SELECT pg_current_xact_id()")
