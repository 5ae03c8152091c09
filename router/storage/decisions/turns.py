"""Turns: requests that belong to an earlier decision. Each has its own id, and its own rows in `decisions` and
`outcomes`, where the column `turn_of` names the decision.

The arm of a turn is not drawn, so no ledger has a row for it. Its cost is added to the outcome of the decision.
Feedback on a turn counts for the decision.

Results of tool calls are turns in any case: they go to the arm that made the calls. Such a turn finds the outcome with
the calls by its `loop_key`. The results of calls are accepted once, in the transaction that stores the turn
(`outcomes.taken_by`), so the turns of a loop form a chain. The loop that the decision began has one answer, so the
decision's outcome gets the newest answer of this loop. All other turns belong to tasks (see `tasks`), and a task's
decision keeps the answer to its own question.

A chat without an id finds the task that it continues by an answer in it. Chats of several users may begin alike, so an
answer is continued once, too (`outcomes.taken_by`), except by the same chat sent again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final

from sqlalchemy import delete, select, update

from ragbandit.router.storage.rows.conversion import CHAT_HASH, Row, body_hash, canonical
from ragbandit.router.storage.rows.outcome_rows import (
    LATER,
    cost_value,
    outcome_row,
    outcome_value,
    with_added,
    with_late,
)
from ragbandit.router.storage.sql.bulk_insert import run
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import json_object, object_at, object_or_empty
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.errors import Conflict, RagBanditError
from ragbandit.shared.model_servers.failures import failure_of, link_of
from ragbandit.shared.types import (
    DERIVED,
    ArmName,
    Branch,
    Cost,
    Decision,
    DecisionId,
    Json,
    Outcome,
    OutcomeStatus,
    Query,
    TraceEvent,
    calls_of,
)

_CALLS: Final = (
    "SELECT d.id, d.arm, d.request, d.turn_of, d.session, o.taken_by FROM outcomes o "
    "JOIN decisions d ON d.id = o.decision_id WHERE o.call IN ? AND d.made_at > ?{named} "
    "ORDER BY d.made_at DESC LIMIT ?"
)
_REPEATED: Final = (
    "SELECT d.id, d.request FROM decisions d LEFT JOIN outcomes o ON o.decision_id = d.id "
    "WHERE d.id IN ? AND d.text != '' AND (coalesce(o.status, '') != 'failed' OR d.id = ?)"
)
_TAKE: Final = "UPDATE outcomes SET taken_by = ? WHERE decision_id = ? AND taken_by IS NULL RETURNING decision_id"

#: key in `Query.request`; its value: {"first": id of the drawn decision, "previous": id of the decision that made the
#: calls, "turn": number of this turn, from 2, BEGUN_BY, NAMED, PERMITTED, CALLED_BY}
TOOL_TURN: Final = "tool_turn"
#: key in TOOL_TURN: id of the turn of a task that began the loop; missing if the decision began it
BEGUN_BY: Final = "begun_by"
#: rule in the trace of a decision for a turn of its task that is not in its loop
TASK_TURN: Final = "task_turn"
_TURNS: Final = (TOOL_TURN, TASK_TURN)
#: key in TOOL_TURN: True if the caller named the arm. Key in TOOL_TURN: the arms that the caller may use, if not all
NAMED: Final = "named"
PERMITTED: Final = "permitted"
#: key in TOOL_TURN, if the turn may go to another arm: the arm that made the calls
CALLED_BY: Final = "called_by"
#: key in `Query.request`: hash of the caller and of all messages
CONVERSATION: Final = "conversation_hash"
#: key in `Query.request` of a chat without an id: the decision whose answer it continues
CONTINUES: Final = "continues"
#: `field` of the error raised if another request has already brought the results, or continued the answer
RESULTS: Final = "tool_call_id"
ANSWER: Final = "messages"
#: maximum number of events in the trace of a decision with turns; each turn has its own trace
_MOST_EVENTS: Final = 500
#: number of newest outcomes with the same `loop_key` that are read
_MOST_ALIKE: Final = 64
#: columns of the drawn decision's outcome that a later turn changes
_STATE: Final = ("status", "answer", "stop_reason", "error", "sources")
_CHANGED: Final = (*_STATE, "trace", "cost", "steps")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolTurn:
    arm: ArmName
    #: number of the turn; the drawn decision is 1
    number: int
    #: value for TOOL_TURN in `Query.request`
    facts: Mapping[str, Json]
    #: session of the decision with the calls
    session: str | None


def loop_key(conversation: object, calls: Sequence[str]) -> str | None:
    """The key by which results find the outcome with these calls; None if an id of a call is empty or repeated.

    conversation: hash of the caller and of the messages before the calls; None if the request was no chat
    """
    if not isinstance(conversation, str) or len({*calls}) < max(1, len(calls)) or not all(map(str.strip, calls)):
        return None
    return body_hash([conversation, *sorted(calls)])


def answer_key(conversation: object, answer: str | None) -> str | None:
    """The key by which the next question of a chat without an id finds this answer; None without a text.

    It is the hash of the chat with the answer as its last message, see `tool_loops`. conversation: as in `loop_key`
    """
    text = "".join((answer or "").split())
    return body_hash([conversation, "assistant", "", text]) if text and isinstance(conversation, str) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ContinuedChat:
    session: str
    #: the decision whose answer the chat continues; None if the same chat has continued it before
    answer: DecisionId | None


def continued_chat(
    database: Database, keys: Sequence[str], *, conversation: object, since: float
) -> ContinuedChat | None:
    """Find the chat without an id that a request continues. None if answers of several chats have one of the keys, or
    if another request has continued the answer: it may be another user's.

    keys: see `answer_key`, `loop_key`. conversation: value of CONVERSATION of the request. since: older turns are left
        out
    """
    query = select(decisions.c.id, decisions.c.session, outcomes.c.taken_by)
    query = query.join(outcomes, outcomes.c.decision_id == decisions.c.id).where(outcomes.c.call.in_(keys))
    query = query.where(decisions.c.made_at > since, decisions.c.session.startswith(DERIVED))
    with database.read() as connection:
        alike = connection.execute(query.order_by(decisions.c.made_at.desc()).limit(_MOST_ALIKE)).all()
        if len({row.session for row in alike}) != 1:
            return None
        for row in alike:
            if row.taken_by is None:
                return ContinuedChat(session=row.session, answer=row.id)
        taken_by = select(decisions.c.request).where(decisions.c.id.in_([row.taken_by for row in alike]))
        for request in connection.execute(taken_by).scalars():
            if edge_of(request).get(CONVERSATION) == conversation:
                return ContinuedChat(session=alike[0].session, answer=None)
    return None


def next_turn(
    database: Database, keys: Sequence[str], *, query: Query, since: float, previous: Json = None
) -> ToolTurn | DecisionId | None:
    """Find the turn to which a request with tool results belongs. Raises StoreError.

    If one outcome with one of the keys waits for results, returns the next turn of its loop. If none waits, and the
    same request came before, returns the id of its stored turn. Otherwise, or if the loop began before `since`,
    returns None, so that an arm is drawn.

    keys: see `loop_key`. previous: id of the decision with the calls; None if the caller does not name it.
    """
    named = "" if previous is None else " AND d.id = ?"
    values = [list(keys), since, *([] if previous is None else [previous]), _MOST_ALIKE]
    with database.read() as connection:
        rows = run(connection, _CALLS.format(named=named), *values)
        waiting = [row for row in rows if row["taken_by"] is None]
        if not waiting:
            return _repeated(connection, [row["taken_by"] for row in rows], query=query)
        calling = waiting[0]
        first = calling["turn_of"] or calling["id"]
        before = _loop_of(connection, calling["request"])
        began = run(connection, "SELECT made_at FROM decisions WHERE id = ?", first)
    if len(waiting) > 1 or not began or began[0]["made_at"] <= since:
        return None
    number = int(before.get("turn", 1)) + 1
    facts = {"first": first, "previous": calling["id"], "turn": number}
    if not before and first != calling["id"]:
        facts[BEGUN_BY] = calling["id"]
    elif BEGUN_BY in before:
        facts[BEGUN_BY] = before[BEGUN_BY]
    return ToolTurn(arm=calling["arm"], number=number, facts=facts, session=calling["session"])


def _repeated(connection: Connection, turns: Sequence[str], *, query: Query) -> DecisionId | None:
    """The stored turn with the same chat as `query`. A failed turn counts only if it has the same id as `query`."""
    chat = query.request.get(CHAT_HASH)
    for row in run(connection, _REPEATED, list(turns), query.id) if turns and chat is not None else ():
        if edge_of(row["request"]).get(CHAT_HASH) == chat:
            return DecisionId(row["id"])
    return None


def _continued(decision: Decision) -> tuple[str, str] | None:
    """Returns (decision with the calls or the answer that this one continues, RESULTS or ANSWER); None if none."""
    request = decision.query.request
    turn, answer = request.get(TOOL_TURN), request.get(CONTINUES)
    if isinstance(turn, Mapping):
        return str(turn["previous"]), RESULTS
    return None if answer is None else (str(answer), ANSWER)


def take_answers(connection: Connection, new: Iterable[Decision]) -> dict[DecisionId, RagBanditError]:
    """Mark the calls whose results new turns bring, and the answers that they continue. Deletes decisions that another
    one has preceded; returns decision -> error.
    """
    ordered = list[tuple[str, DecisionId, str]]()
    for decision in new:
        if (continued := _continued(decision)) is not None:
            ordered.append((continued[0], decision.id, continued[1]))
    ordered.sort()  # a fixed order prevents deadlocks between writers
    errors = dict[DecisionId, RagBanditError]()
    for previous, key, field in ordered:
        if not run(connection, _TAKE, key, previous):
            message = "another request has already continued this chat"
            if field == RESULTS:
                message = "another request has already brought the results of these tool calls"
            errors[key] = Conflict(message, field=field, remedy="send the request again: it gets an arm of its own")
    if errors:
        connection.execute(delete(decisions).where(decisions.c.id.in_(errors)))
    return errors


def give_back_answers(connection: Connection, refused: Iterable[Decision]) -> None:
    """Undo `take_answers` of decisions that are not stored after all."""
    for decision in refused:
        if (continued := _continued(decision)) is not None:
            taken = update(outcomes).where(outcomes.c.decision_id == continued[0])
            connection.execute(taken.where(outcomes.c.taken_by == decision.id).values(taken_by=None))


def edge_of(request: str | None) -> Mapping[str, Any]:
    """`Query.request` of a stored decision; {} if it is unreadable. request: the column `decisions.request`."""
    return object_at(object_or_empty(request), "edge")


def _loop_of(connection: Connection, request: str | None) -> Mapping[str, Any]:
    """The value of TOOL_TURN of a turn, or of the turn that it replaces after a failure; {} if it brings no results."""
    edge = edge_of(request)
    if failed := link_of(edge).get("first"):
        rows = run(connection, "SELECT request FROM decisions WHERE id = ?", failed)
        edge = edge_of(rows[0]["request"] if rows else None)
    loop = edge.get(TOOL_TURN)
    return loop if isinstance(loop, Mapping) else {}


def firsts_of(connection: Connection, ids: Iterable[str]) -> dict[str, DecisionId]:
    """Id of a turn -> id of its decision; ids of decisions are left out."""
    rows = run(connection, "SELECT id, turn_of FROM decisions WHERE id IN ? AND turn_of IS NOT NULL", list(ids))
    return {row["id"]: row["turn_of"] for row in rows}


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnRow:
    """A later turn of a decision, for a list."""

    id: DecisionId
    arm: ArmName
    made_at: float
    #: None without an outcome
    status: OutcomeStatus | None
    stop_reason: str | None
    #: dollars of its own answer; None without an outcome
    dollars: float | None


def newest_turns(database: Database, first: str, *, limit: int) -> list[TurnRow]:
    """The newest `limit` later turns of a decision, the newest first. Raises StoreError."""
    query = select(*decisions.c["id", "arm", "made_at"], *outcomes.c["status", "stop_reason", "cost"])
    query = query.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id).where(decisions.c.turn_of == first)
    query = query.order_by(decisions.c.made_at.desc(), decisions.c.id.desc()).limit(limit)
    with database.read() as connection:
        rows = [dict(row) for row in connection.execute(query).mappings()]
    costs = [row.pop("cost") for row in rows]
    dollars = [None if cost is None else cost_value(cost).dollars for cost in costs]
    return [TurnRow(**row, dollars=amount) for row, amount in zip(rows, dollars, strict=True)]


def own_events(trace: Sequence[TraceEvent]) -> tuple[TraceEvent, ...]:
    """The events of a decision's own answer. The events of later turns follow; each turn has its own trace, too."""
    return tuple(takewhile(lambda event: not (isinstance(event, Branch) and event.rule in _TURNS), trace))


def earlier_turns(
    connection: Connection, firsts: Sequence[str], *, without: Collection[str]
) -> list[tuple[Outcome, Row, DecisionId]]:
    """Turns of these decisions whose outcomes were stored before the decision had one: for `add_turns`.

    without: turns whose outcomes are stored together with those of their decisions
    """
    if not firsts:
        return []
    query = select(outcomes, *decisions.c["turn_of", "request"])
    query = query.join(decisions, decisions.c.id == outcomes.c.decision_id)
    rows = connection.execute(query.where(decisions.c.turn_of.in_(firsts)).order_by(outcomes.c.made_at)).mappings()
    new = [row for row in rows if row["decision_id"] not in without]
    return [(outcome_value(row), row, DecisionId(row["turn_of"])) for row in new]


def add_turns(
    connection: Connection, turns: Sequence[tuple[Outcome, Row, DecisionId]], *, waits: Collection[str]
) -> list[Outcome]:
    """Add the outcome of each turn to that of its decision, given by id. Returns outcomes of loops that ended.

    turns: (outcome, its row with `decisions.request`, decision). waits: decisions for which a ledger waits. A turn of
        another one comes too late: its cost is stored apart.
    """
    finished = []
    for outcome, turn_row, first in sorted(turns, key=lambda turn: turn[2]):  # in the order of `take_answers`
        query = select(outcomes).where(outcomes.c.decision_id == first).with_for_update()
        row = connection.execute(query).mappings().first()
        if row is None:
            continue
        if first not in waits:
            late = with_late(row["cost"], turn=outcome)
            connection.execute(update(outcomes).where(outcomes.c.decision_id == first).values(cost=late))
            continue
        before, failure = outcome_value(row), failure_of(outcome.made_by)
        loop = _loop_of(connection, turn_row["request"])
        is_in_loop = bool(loop) and BEGUN_BY not in loop
        # A refused turn does not change the result of the loop, and other turns of a task have results of their own.
        is_result = is_in_loop and not (failure is not None and failure.is_unable)
        rule = TOOL_TURN if is_in_loop else TASK_TURN
        note = Branch(rule=rule, value=f"{outcome.decision_id}: {outcome.stop_reason}")
        whole = replace(
            outcome,
            decision_id=first,
            trace=(*before.trace, note, *outcome.trace)[:_MOST_EVENTS],
            cost=before.cost + outcome.cost + Cost(turns=1),
            steps=before.steps + outcome.steps,
        )
        if not is_result:
            same = {name: getattr(before, name) for name in _STATE}
            whole = replace(whole, **same)
        changed = {name: value for name, value in outcome_row(whole).items() if name in _CHANGED}
        if turn_row["trace"] is None:  # texts are not stored
            changed |= dict.fromkeys(("answer", "trace", "error", "sources"))
        stored = {**json_object(row["cost"]), **json_object(changed["cost"])}  # LATER and LATE stay
        changed["cost"] = with_added(canonical(stored), key=LATER, added=outcome.cost + Cost(turns=1))
        connection.execute(update(outcomes).where(outcomes.c.decision_id == first).values(**changed))
        if before.stop_reason == "tool_calls" and not calls_of(outcome) and is_result:
            finished.append(whole)
    return finished


def called(outcome: Outcome, *, request: str | None, session: str | None = None) -> str | None:
    """`loop_key` of an outcome with calls, or `answer_key` in a chat without an id, for the column `call`; else None.

    request, session: columns of the decision
    """
    calls = calls_of(outcome)
    if calls:
        return loop_key(edge_of(request).get(CONVERSATION), calls)
    is_own = session is not None and session.startswith(DERIVED)
    return answer_key(edge_of(request).get(CONVERSATION), outcome.answer) if is_own else None
