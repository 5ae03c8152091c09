"""Tool turns: requests that bring the results of tools to the arm that called them; one decision, whatever their
number.

Each turn is a row of its own among decisions and outcomes, with an id that its caller may use. Its arm is not drawn, so
that nothing is learned of it. What it used is added to the outcome of the decision that drew the arm, which has the
newest answer; feedback on a turn is feedback on that decision.

A loop belongs to its caller and its conversation: results find the outcome with the calls by a hash of the caller, of
all messages before the calls, and of the ids of all calls (`loop_key`). The results of an outcome's calls are taken
once, in the transaction that stores the turn (`outcomes.taken_by`): so the turns of a loop are a chain, and the number
of a turn is the number of turns stored before it plus one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, delete, func, or_, select, update

from ragbandit.router.storage.rows.conversion import (
    CHAT_HASH,
    Row,
    body_hash,
    canonical,
    json_object,
    object_or_empty,
    of_known,
)
from ragbandit.router.storage.rows.outcome_rows import LATER, outcome_row, outcome_value
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.errors import Conflict, RagBanditError
from ragbandit.shared.types import ArmName, Branch, Cost, Decision, DecisionId, Json, Outcome, Query, calls_of

#: the key of a query's `request` with the turn: {"first": the decision that drew the arm, "previous": the decision
#: whose calls it brings the results of, "turn": its number, from 2}
TOOL_TURN: Final = "tool_turn"
#: the key of a query's `request` with the hash of its caller and of all its messages
CONVERSATION: Final = "conversation_hash"
#: the field of the error of a turn whose results another request has taken
RESULTS: Final = "tool_call_id"
#: outcomes with the same key that are looked at, the newest first; more cannot be told apart in any case
_MOST_ALIKE: Final = 64
#: columns of an outcome that a later turn changes
_CHANGED: Final = ("status", "answer", "trace", "cost", "steps", "stop_reason", "error", "sources")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolTurn:
    """The next turn of a loop of tools."""

    arm: ArmName
    #: its number; the drawn decision is 1
    number: int
    #: as a query's `request` has it under TOOL_TURN
    facts: Mapping[str, Json]


def loop_key(conversation: object, calls: Sequence[str]) -> str | None:
    """The hash by which results find the outcome with these calls; None if the calls cannot be told apart.

    conversation: the hash of the caller and of the messages before the calls; decisions of older releases have none.
    """
    if not isinstance(conversation, str) or len({*calls}) < max(1, len(calls)) or not all(map(str.strip, calls)):
        return None
    return body_hash([conversation, *sorted(calls)])


def next_turn(
    database: Database, key: str, *, query: Query, since: float, previous: Json = None
) -> ToolTurn | DecisionId | None:
    """The turn that brings the results of the calls with this key, or the turn that the same request made before.

    None if no calls have this key, or several calls that cannot be told apart: the request is a new draw. since: older
    loops are not continued. previous: the decision that the caller names, if it names one. Raises StoreError.
    """
    found = select(*decisions.c["id", "arm", "request"], outcomes.c.taken_by)
    found = found.join(outcomes, outcomes.c.decision_id == decisions.c.id)
    found = found.where(outcomes.c.call == key, decisions.c.made_at > since)
    found = found if previous is None else found.where(decisions.c.id == previous)
    with database.read() as connection:
        rows = connection.execute(found.order_by(decisions.c.made_at.desc()).limit(_MOST_ALIKE)).all()
        waiting = [row for row in rows if row.taken_by is None]
        if not waiting:
            return _repeated(connection, [row.taken_by for row in rows], query=query)
        turn = _turn_of(waiting[0].request) or {"first": waiting[0].id, "turn": 1}
        began_at = connection.execute(select(decisions.c.made_at).where(decisions.c.id == turn["first"])).scalar()
    if len(waiting) > 1 or began_at is None or began_at <= since:
        return None
    facts = {"first": turn["first"], "previous": waiting[0].id, "turn": int(turn["turn"]) + 1}
    return ToolTurn(arm=waiting[0].arm, number=facts["turn"], facts=facts)


def _repeated(connection: Connection, turns: Sequence[str], *, query: Query) -> DecisionId | None:
    """The turn among these that came with the same chat. One that failed may be asked again under another id."""
    rows = select(decisions.c.id, decisions.c.request).where(decisions.c.id.in_(turns), decisions.c.text != "")
    rows = rows.outerjoin(outcomes, outcomes.c.decision_id == decisions.c.id)
    failed = func.coalesce(outcomes.c.status, "") == "failed"
    chat = query.request.get(CHAT_HASH)
    for row in connection.execute(rows.where(or_(~failed, decisions.c.id == query.id))):
        if chat is not None and edge_of(row.request).get(CHAT_HASH) == chat:
            return DecisionId(row.id)
    return None


def take_results(connection: Connection, new: Iterable[Decision]) -> dict[DecisionId, RagBanditError]:
    """Take the results that new turns bring; turns whose results another one has are deleted, with what is wrong."""
    facts = {one.id: one.query.request.get(TOOL_TURN) for one in new}
    # In one order, so that two writers never wait for each other in a circle.
    turns = sorted((str(turn["previous"]), key) for key, turn in facts.items() if isinstance(turn, Mapping))
    lost = dict[DecisionId, RagBanditError]()
    for previous, key in turns:
        take = update(outcomes).where(outcomes.c.decision_id == previous, outcomes.c.taken_by.is_(None))
        if not connection.execute(take.values(taken_by=key)).rowcount:
            message = "another request has brought results of these calls of tools"
            lost[key] = Conflict(message, field=RESULTS, remedy="send the request again: it gets an arm of its own")
    if lost:
        connection.execute(delete(decisions).where(decisions.c.id.in_(lost)))
    return lost


def edge_of(request: str | None) -> Mapping[str, Any]:
    """What the edge has noted of a request. request: the column of `decisions`."""
    edge = object_or_empty(request).get("edge")
    return edge if isinstance(edge, Mapping) else {}


def _turn_of(request: str | None) -> Mapping[str, Any] | None:
    """The facts of a turn; None if the row is no turn."""
    if request is None or f'"{TOOL_TURN}"' not in request:
        return None
    turn: Mapping[str, Any] | None = edge_of(request).get(TOOL_TURN)
    return turn


def first_of(request: str | None) -> DecisionId | None:
    """The decision that drew the arm of a turn; None: the row is none. request: its column."""
    turn = _turn_of(request)
    return None if turn is None else DecisionId(turn["first"])


def firsts_of(connection: Connection, ids: Iterable[str]) -> dict[str, DecisionId]:
    """Turn -> the decision that drew its arm, of those among these decisions that are turns."""
    here = decisions.c.id.in_(list(ids)), decisions.c.request.contains(f'"{TOOL_TURN}"')
    rows = connection.execute(select(decisions.c.id, decisions.c.request).where(*here))
    return {row.id: first for row in rows if (first := first_of(row.request)) is not None}


def add_turns(connection: Connection, turns: Sequence[tuple[Outcome, Row, DecisionId]]) -> list[Outcome]:
    """Add the outcomes of turns to the outcomes of their decisions; those decisions whose last answer has come.

    turns: each outcome with its row, which has no texts if none are kept, and the decision that drew its arm.
    """
    ended = []
    for outcome, own, first in sorted(turns, key=lambda turn: turn[2]):  # in the order of `take_results`
        known = connection.execute(select(outcomes).where(outcomes.c.decision_id == first).with_for_update()).mappings()
        if (row := known.first()) is None:
            continue
        before = outcome_value(row)
        note = Branch(rule=TOOL_TURN, value=f"{outcome.decision_id}: {outcome.stop_reason}")
        whole = replace(
            outcome,
            decision_id=first,
            trace=(*before.trace, note, *outcome.trace),
            cost=before.cost + outcome.cost,
            steps=before.steps + outcome.steps,
        )
        changed = {name: value for name, value in outcome_row(whole).items() if name in _CHANGED}
        changed |= {name: None for name in ("answer", "trace", "error", "sources") if own["trace"] is None}
        changed["cost"] = _with_later(changed["cost"], before=row["cost"], added=outcome.cost)
        connection.execute(update(outcomes).where(outcomes.c.decision_id == first).values(**changed))
        if before.stop_reason == "tool_calls" and not calls_of(outcome):
            ended.append(whole)
    return ended


def _with_later(cost: str, *, before: str, added: Cost) -> str:
    """The JSON of a cost, which says how much of it later turns added. before: the one that is stored."""
    known = of_known(Cost, json_object(before).get(LATER, {})) + added
    return canonical({**json_object(cost), LATER: {name: value for name, value in asdict(known).items() if value}})


def called(outcome: Outcome, *, request: str | None) -> str | None:
    """The key of an outcome with calls, for its column `call`. request: the column of its decision."""
    calls = calls_of(outcome)
    return loop_key(edge_of(request).get(CONVERSATION), calls) if calls else None
