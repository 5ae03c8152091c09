"""Tasks: all turns of a conversation that one decision decides.

The table `units` has the newest task of each conversation: its decision, and the arm that its next turn gets. The row
is inserted in the transaction of the decision, and its key is unique. So if several first turns arrive at once, one
becomes the decision, and the others become turns of it. A task has ended when `until` is over. Ledgers learn its
decision then: `waiting.open_until` has the same time.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, or_, select, update

from ragbandit.router.storage.decisions.continuing import give_back_answers, task_key
from ragbandit.router.storage.rows.queried_facts import FACT_COLUMNS, QueriedFacts, or_unfilled
from ragbandit.router.storage.rows.waiting import STOPPED, delete_waiting, lock_rows
from ragbandit.router.storage.sql.bulk_insert import insert_into, send
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments
from ragbandit.router.storage.sql.tables import closures, decisions, units, waiting
from ragbandit.shared.errors import Conflict, RagBanditError
from ragbandit.shared.types import Decision, DecisionId, TaskTurn

#: `field` of the error of a turn if another request has meanwhile begun the task, or the task has ended
TAKEN: Final = "unit"
#: maximum number of decisions of a session that are read, newest first
MOST_READ: Final = 10_000
#: number of rows that are fetched at once
_PAGE: Final = 100
#: `units.turns` of an ended task. A turn that was decided before and is stored later must not open it again.
ENDED: Final = 0
_LOCK: Final = "SELECT key FROM units WHERE {} ORDER BY key FOR UPDATE"
_LOCK_BY_KEY, _LOCK_BY_FIRST = _LOCK.format("key IN ?"), _LOCK.format("first IN ?")


def store_tasks(connection: Connection, new: Iterable[Decision]) -> dict[DecisionId, RagBanditError]:
    """Store the tasks of new decisions, and count new turns. Deletes decisions whose task has meanwhile been begun by
    another request, or has ended; returns decision -> Conflict with the field TAKEN.
    """
    placed = [(fact, decision) for decision in new if (fact := TaskTurn.of(decision.facts)) is not None]
    if not placed:
        return {}
    # A fixed order prevents deadlocks between writers.
    placed.sort(key=lambda item: (item[0].unit, item[1].turn_of is None, item[1].id))
    errors = dict[DecisionId, RagBanditError]()
    for fact, decision in placed:
        if decision.turn_of is None:
            row = {"key": fact.unit, "first": decision.id, "arm": decision.arm, "turns": 1, "until": fact.until}
            insert = insert_into(connection, units).values(row)
            is_over = or_(units.c.until <= decision.made_at, units.c.turns == ENDED)
            replaced = insert.on_conflict_do_update(index_elements=["key"], set_=row, where=is_over)
            if not connection.execute(replaced.returning(units.c.first)).first():
                message, remedy = "another request has begun this task", "send the request again: it continues the task"
                errors[decision.id] = Conflict(message, field=TAKEN, remedy=remedy)
        else:
            goes_on = (units.c.key == fact.unit, units.c.first == decision.turn_of, units.c.turns != ENDED)
            changed: dict[str, Any] = {"turns": units.c.turns + 1, "until": fact.until}
            if decision.query.continues.loop is None:  # results go to the arm of their calls
                changed["arm"] = decision.arm
            if not connection.execute(update(units).where(*goes_on).values(**changed).returning(units.c.first)).first():
                message, remedy = "the task has ended meanwhile", "send the request again: it gets a draw"
                errors[decision.id] = Conflict(message, field=TAKEN, remedy=remedy)
    if errors:
        give_back_answers(connection, [decision for _, decision in placed if decision.id in errors])
        connection.execute(decisions.delete().where(decisions.c.id.in_(errors)))
    return errors


def lock_tasks(connection: Connection, new: Iterable[Decision]) -> None:
    """Lock the tasks of new turns, and of chats that continue an answer, before `take_answers` and `store_tasks`; see
    `rows/waiting.py` for the order of locks.
    """
    keys = set[str]()
    for decision in new:
        is_further = decision.turn_of is not None or decision.query.continues.answer is not None
        fact = TaskTurn.of(decision.facts) if is_further else None
        if fact is not None:
            keys.add(fact.unit)
    if keys:
        send(connection, _LOCK_BY_KEY, sorted(keys))


def lock_task(connection: Connection, successor: Decision) -> None:
    """Lock the task of a turn, for `move_task`."""
    key = task_key(successor.query)
    if key is not None:
        send(connection, _LOCK_BY_KEY, [key])


def move_task(connection: Connection, successor: Decision) -> None:
    """Give the next turns of a task the arm of the successor, which answers instead of a failed turn."""
    is_open = units.c.first == successor.turn_of, units.c.until > successor.made_at
    moved = update(units).where(units.c.key == task_key(successor.query), *is_open)
    connection.execute(moved.values(arm=successor.arm))


def keep_open(connection: Connection, new: Iterable[Decision]) -> None:
    """Let ledgers wait until the new ends of the tasks of these turns, unless a ledger has closed the decision."""
    ends = dict[str, float]()
    for decision in new:
        fact = TaskTurn.of(decision.facts)
        if fact is not None and decision.turn_of is not None:
            ends[decision.turn_of] = max(fact.until, ends.get(decision.turn_of, 0.0))
    if ends:
        _set_ends(connection, ends)


def _set_ends(connection: Connection, ends: Mapping[str, float]) -> None:
    lock_rows(connection, waiting.c.decision_id.in_(ends))
    for key, until in sorted(ends.items()):
        send(connection, "UPDATE waiting SET open_until = ? WHERE decision_id = ?", until, key)


def end_tasks(connection: Connection, decision_ids: Sequence[str], *, now: float) -> list[str]:
    """End the open tasks of these decisions. Returns the decisions whose tasks were open."""
    send(connection, _LOCK_BY_FIRST, [*decision_ids])
    is_open = (units.c.first.in_(decision_ids), units.c.until > now, units.c.turns != ENDED)
    ended = update(units).where(*is_open).values(until=now, turns=ENDED)
    rows = connection.execute(ended.returning(units.c.first)).scalars().all()
    if rows:
        _set_ends(connection, dict.fromkeys(rows, now))
    return list(rows)


def stop_tasks(connection: Connection, decision_ids: Sequence[str], *, tally: Increments, now: float) -> None:
    """End the open tasks of these decisions, and close the decisions without learning them: a budget has refused a
    turn, so their quality is unknown, which is not a failure of the arm.
    """
    stopped = end_tasks(connection, decision_ids, now=now)
    if not stopped:
        return
    rows = delete_waiting(connection, waiting.c.decision_id.in_(stopped), tally=tally)
    common = {"state": "closed", "field": None, "reason": STOPPED, "made_at": now}
    closed = [{"policy": row["policy"], "decision_id": row["decision_id"], **common} for row in rows]
    if closed:
        connection.execute(closures.insert(), closed)
        tally.count_closures(closed)


def decisions_of_session(session: str, *, tenant: str, api_key: str | None) -> list[ColumnElement[bool]]:
    """Conditions on `decisions`. Keys of a tenant may use the same id for different sessions: if `api_key` has
    decisions of this session, only these count; otherwise all, since raters have keys of their own.
    """
    of_session = [decisions.c.session == session, decisions.c.tenant == tenant, decisions.c.turn_of.is_(None)]
    if api_key is None:
        return of_session
    same = decisions.alias()
    own = select(same.c.id).where(same.c.session == session, same.c.tenant == tenant, same.c.api_key == api_key)
    return [*of_session, or_(decisions.c.api_key == api_key, ~own.exists())]


def newest_decision(
    connection: Connection, *, session: str, tenant: str, api_key: str | None = None
) -> DecisionId | None:
    """The decision of the session to which feedback on the session belongs; None if there is none.

    Decisions of tasks come first, and among these the main agent's, since a sub-agent's result is only a part of the
    judged result. Then decisions come first that a ledger has not closed, and then the newest ones.
    """
    of_session = decisions_of_session(session, tenant=tenant, api_key=api_key)
    waits = select(waiting.c.decision_id).where(waiting.c.decision_id == decisions.c.id).exists()
    is_task = or_unfilled(decisions.c.task_until.is_not(None))
    query = select(decisions.c.id, *FACT_COLUMNS, is_task.label("may_be_task"))
    # A session may have many decisions of one turn, such as an agent's small requests, and many tasks of sub-agents.
    order = (is_task.desc(), waits.desc(), decisions.c.made_at.desc(), decisions.c.id.desc())
    query = query.where(*of_session).order_by(*order).limit(MOST_READ).execution_options(yield_per=_PAGE)
    newest, highest = None, (False, False)
    with connection.execute(query) as result:
        for row in result.mappings():
            facts = QueriedFacts.of_row(row)
            rank = facts.task_until is not None, not facts.is_of_agent
            if newest is None or rank > highest:
                newest, highest = DecisionId(row["id"]), rank
            if highest == (row["may_be_task"], True):
                break  # the rows are sorted: no later row is better
    return newest
