"""Tool turns: requests that bring the results of tool calls to the arm that made the calls.

A tool loop is one drawn decision and any number of turns. Each turn has its own rows in `decisions` and `outcomes`, and
its own id. The arm of a turn is not drawn, so policies learn nothing from turns. The cost of a turn is added to the
outcome of the drawn decision, which also gets the newest answer. Feedback on a turn counts for the drawn decision.

A turn finds the outcome with the calls by its `loop_key`. The results of calls are accepted once, in the transaction
that stores the turn (`outcomes.taken_by`), so the turns of a loop form a chain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, delete, func, or_, select, update

from ragbandit.router.storage.rows.conversion import CHAT_HASH, Row, body_hash, object_or_empty
from ragbandit.router.storage.rows.outcome_rows import outcome_row, outcome_value, with_later
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import has_key
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.errors import Conflict, RagBanditError
from ragbandit.shared.model_servers.failures import failure_of
from ragbandit.shared.types import ArmName, Branch, Decision, DecisionId, Json, Outcome, Query, calls_of

#: key in `Query.request`; its value: {"first": id of the drawn decision, "previous": id of the decision that made the
#: calls, "turn": number of this turn, from 2, NAMED, PERMITTED}
TOOL_TURN: Final = "tool_turn"
#: key in TOOL_TURN: True if the caller named the arm. Key in TOOL_TURN: the arms that the caller may use, if not all
NAMED: Final = "named"
PERMITTED: Final = "permitted"
#: key in `Query.request`: hash of the caller and of all messages
CONVERSATION: Final = "conversation_hash"
#: `field` of the error raised if another request has already brought the results
RESULTS: Final = "tool_call_id"
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


def loop_key(conversation: object, calls: Sequence[str]) -> str | None:
    """The key by which results find the outcome with these calls; None if an id of a call is empty or repeated.

    conversation: hash of the caller and of the messages before the calls; None if the request was no chat
    """
    if not isinstance(conversation, str) or len({*calls}) < max(1, len(calls)) or not all(map(str.strip, calls)):
        return None
    return body_hash([conversation, *sorted(calls)])


def next_turn(
    database: Database, keys: Sequence[str], *, query: Query, since: float, previous: Json = None
) -> ToolTurn | DecisionId | None:
    """Find the turn to which a request with tool results belongs. Raises StoreError.

    If one outcome with one of the keys waits for results, returns the next turn of its loop. If none waits, and the
    same request came before, returns the id of its stored turn. Otherwise, or if the loop began before `since`,
    returns None, so that an arm is drawn.

    keys: see `loop_key`. previous: id of the decision with the calls; None if the caller does not name it.
    """
    calls = select(*decisions.c["id", "arm", "request"], outcomes.c.taken_by)
    calls = calls.join(outcomes, outcomes.c.decision_id == decisions.c.id)
    calls = calls.where(outcomes.c.call.in_(keys), decisions.c.made_at > since)
    if previous is not None:
        calls = calls.where(decisions.c.id == previous)
    with database.read() as connection:
        rows = connection.execute(calls.order_by(decisions.c.made_at.desc()).limit(_MOST_ALIKE)).all()
        waiting = [row for row in rows if row.taken_by is None]
        if not waiting:
            return _repeated(connection, [row.taken_by for row in rows], query=query)
        turn = _turn_of(waiting[0].request) or {"first": waiting[0].id, "turn": 1}
        began_at = connection.execute(select(decisions.c.made_at).where(decisions.c.id == turn["first"])).scalar()
    if len(waiting) > 1 or began_at is None or began_at <= since:
        return None
    number = int(turn["turn"]) + 1
    facts = {"first": turn["first"], "previous": waiting[0].id, "turn": number}
    return ToolTurn(arm=waiting[0].arm, number=number, facts=facts)


def _repeated(connection: Connection, turns: Sequence[str], *, query: Query) -> DecisionId | None:
    """The stored turn with the same chat as `query`. A failed turn counts only if it has the same id as `query`."""
    rows = select(decisions.c.id, decisions.c.request).where(decisions.c.id.in_(turns), decisions.c.text != "")
    rows = rows.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id)
    failed = func.coalesce(outcomes.c.status, "") == "failed"
    chat = query.request.get(CHAT_HASH)
    for row in connection.execute(rows.where(or_(~failed, decisions.c.id == query.id))):
        if chat is not None and edge_of(row.request).get(CHAT_HASH) == chat:
            return DecisionId(row.id)
    return None


def take_results(connection: Connection, new: Iterable[Decision]) -> dict[DecisionId, RagBanditError]:
    """Mark the calls whose results new turns bring. Deletes turns whose calls were taken; returns turn -> error."""
    turns = {decision.id: decision.query.request.get(TOOL_TURN) for decision in new}
    # A fixed order prevents deadlocks between writers.
    ordered = sorted((str(turn["previous"]), key) for key, turn in turns.items() if isinstance(turn, Mapping))
    errors = dict[DecisionId, RagBanditError]()
    for previous, key in ordered:
        take = update(outcomes).where(outcomes.c.decision_id == previous, outcomes.c.taken_by.is_(None))
        if not connection.execute(take.values(taken_by=key)).rowcount:
            message = "another request has already brought the results of these tool calls"
            errors[key] = Conflict(message, field=RESULTS, remedy="send the request again: it gets an arm of its own")
    if errors:
        connection.execute(delete(decisions).where(decisions.c.id.in_(errors)))
    return errors


def edge_of(request: str | None) -> Mapping[str, Any]:
    """`Query.request` of a stored decision; {} if it is unreadable. request: the column `decisions.request`."""
    edge = object_or_empty(request).get("edge")
    return edge if isinstance(edge, Mapping) else {}


def _turn_of(request: str | None) -> Mapping[str, Any]:
    """The value of TOOL_TURN; {} if the decision was drawn."""
    is_turn = request is not None and f'"{TOOL_TURN}"' in request  # the other requests need not be parsed
    return edge_of(request).get(TOOL_TURN) or {} if is_turn else {}


def first_of(request: str | None) -> DecisionId | None:
    """Id of the drawn decision of a turn's loop; None for a drawn decision. request: the turn's `decisions.request`."""
    return _turn_of(request).get("first")


def firsts_of(connection: Connection, ids: Iterable[str]) -> dict[str, DecisionId]:
    """Id of a turn -> id of its drawn decision; ids of drawn decisions are left out."""
    query = select(decisions.c.id, decisions.c.request).where(decisions.c.id.in_(list(ids)))
    rows = connection.execute(query.where(has_key(decisions.c.request, TOOL_TURN)))
    return {row.id: first for row in rows if (first := first_of(row.request)) is not None}


def add_turns(connection: Connection, turns: Sequence[tuple[Outcome, Row, DecisionId]]) -> list[Outcome]:
    """Add the outcome of each turn to that of its drawn decision, given by id. Returns outcomes of loops that ended."""
    finished = []
    for outcome, turn_row, first in sorted(turns, key=lambda turn: turn[2]):  # in the order of `take_results`
        query = select(outcomes).where(outcomes.c.decision_id == first).with_for_update()
        row = connection.execute(query).mappings().first()
        if row is None:
            continue
        before, failure = outcome_value(row), failure_of(outcome.made_by)
        is_unable = failure is not None and failure.is_unable
        note = Branch(rule=TOOL_TURN, value=f"{outcome.decision_id}: {outcome.stop_reason}")
        whole = replace(
            outcome,
            decision_id=first,
            trace=(*before.trace, note, *outcome.trace),
            cost=before.cost + outcome.cost,
            steps=before.steps + outcome.steps,
        )
        if is_unable:  # a refused turn does not change the result of the loop
            same = {name: getattr(before, name) for name in _STATE}
            whole = replace(whole, **same)
        changed = {name: value for name, value in outcome_row(whole).items() if name in _CHANGED}
        if turn_row["trace"] is None:  # texts are not stored
            changed |= dict.fromkeys(("answer", "trace", "error", "sources"))
        changed["cost"] = with_later(changed["cost"], before=row["cost"], added=outcome.cost)
        connection.execute(update(outcomes).where(outcomes.c.decision_id == first).values(**changed))
        if before.stop_reason == "tool_calls" and not calls_of(outcome) and not is_unable:
            finished.append(whole)
    return finished


def called(outcome: Outcome, *, request: str | None) -> str | None:
    """`loop_key` of an outcome, for the column `call`; None without calls. request: the decision's `request`."""
    calls = calls_of(outcome)
    return loop_key(edge_of(request).get(CONVERSATION), calls) if calls else None
