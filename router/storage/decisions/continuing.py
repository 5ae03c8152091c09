"""Which earlier turn does a request continue? Five keys name it, and this file looks for all of them.

A *turn* is a request with its answer, and a *task* is all turns that one decision decides. Results of tools continue
the turn with the calls. A session, a conversation or an agent names a task and not a turn in it.

The five keys, and where each one is looked for:

- results of calls: `calls_key`, made by `hash_conversation` in api/openai/tool_loops.py, stored in `outcomes.call`, and
  looked for by `earlier_turn`. Results are accepted once (`take_answers`), so the turns that bring them form a chain -
  text of an answer, in a chat without an id: `answer_key`, made, stored and looked for like the key of calls. Chats of
  several users may begin alike, so an answer is continued once, too, except by the same chat sent again - previous
  response: the id of its decision, in `previous_response_id`. The addition `responses` gives the request the
  session and the messages of that response, and `earlier_turn` looks for calls of that decision alone - session, in a
  header or a field of the body: it names the task by `task_key`, stored in `units.key`. The step `Tasks` looks for it
  by `newest_tasks`, with one statement for all questions that are decided at once - message id, in a header: it names
  the answer to this request, so that a rating that is fetched finds the decision. No question is continued by it
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete, select, update

from ragbandit.router.storage.decisions.chains import PREVIOUS
from ragbandit.router.storage.decisions.turns import (
    BEGUN_BY,
    CONTINUES,
    CONVERSATION,
    PERMITTED,
    TOOL_TURN,
    edge_of,
    tool_turn_of,
)
from ragbandit.router.storage.rows.conversion import CHAT_HASH, body_hash
from ragbandit.router.storage.sql.bulk_insert import run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.errors import Conflict, RagBanditError
from ragbandit.shared.types import (
    DERIVED,
    ArmName,
    Decision,
    DecisionId,
    Json,
    Outcome,
    Query,
    RequestFacts,
    calls_of,
    facts_of,
)

_CALLS: Final = (
    "SELECT d.id, d.arm, d.request, d.turn_of, d.session, o.taken_by FROM outcomes o "
    "JOIN decisions d ON d.id = o.decision_id WHERE o.call IN ? AND d.made_at > ?{named} "
    "ORDER BY d.made_at DESC LIMIT ?"
)
_REPEATED: Final = (
    "SELECT d.id, d.arm, d.request FROM decisions d LEFT JOIN outcomes o ON o.decision_id = d.id "
    "WHERE d.id IN ? AND d.text != '' AND (coalesce(o.status, '') != 'failed' OR d.id = ?)"
)
_TAKE: Final = "UPDATE outcomes SET taken_by = ? WHERE decision_id = ? AND taken_by IS NULL RETURNING decision_id"
_NEWEST: Final = "SELECT key, first, arm, turns, until FROM units WHERE key IN ?"

#: `field` of the error raised if another request has already brought the results, or continued the answer
RESULTS: Final = "tool_call_id"
ANSWER: Final = "messages"
#: number of newest outcomes with the same key that are read
_MOST_ALIKE: Final = 64


def calls_key(conversation: object, calls: Sequence[str]) -> str | None:
    """The key by which results find the turn with these calls; None if an id of a call is empty or repeated.

    conversation: hash of the caller and of the messages before the calls; None if the request was no chat
    """
    if not isinstance(conversation, str) or len({*calls}) < max(1, len(calls)) or not all(map(str.strip, calls)):
        return None
    return body_hash([conversation, *sorted(calls)])


def answer_key(conversation: object, answer: str | None) -> str | None:
    """The key by which the next question of a chat without an id finds this answer; None without a text.

    It is the hash of the chat with the answer as its last message, see `hash_conversation`. conversation: as in
    `calls_key`
    """
    text = "".join((answer or "").split())
    return body_hash([conversation, "assistant", "", text]) if text and isinstance(conversation, str) else None


def continuation_key(outcome: Outcome, *, request: str | None, session: str | None = None) -> str | None:
    """The key by which a later request finds this outcome, for the column `call`; None if no request can.

    request, session: columns of the decision
    """
    calls, conversation = calls_of(outcome), edge_of(request).get(CONVERSATION)
    if calls:
        return calls_key(conversation, calls)
    is_own = session is not None and session.startswith(DERIVED)
    return answer_key(conversation, outcome.answer) if is_own else None


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierTurn:
    """The turn that a request continues."""

    session: str | None
    #: entries for `Query.request` of the request: TOOL_TURN for results, CONTINUES for an answer that waits; or none
    facts: RequestFacts
    #: the arm that made the calls and gets their results; None if the request brings no results
    arm: ArmName | None = None
    #: the stored turn, if the same request came before
    same: DecisionId | None = None


def earlier_turn(
    database: Database,
    query: Query,
    *,
    calls: Sequence[str],
    answered: str | None,
    calls_since: float,
    chats_since: float | None,
    may_answer: Callable[[ArmName, int], bool],
) -> EarlierTurn | None:
    """Find the turn that a request continues. Returns None if there is none, or if it is not certain which of several
    turns is meant: the other one may be another user's. Raises StoreError.

    Results go to the arm of their calls. If it may not answer, the request can still belong to the chat of the calls.

    calls: see `calls_key`; () if the request does not end with results. answered: key of the last answer, or None.
    calls_since, chats_since: older turns are left out. If `chats_since` is None, the request belongs to no task, or
        something else names the task.
    may_answer: whether an arm may get results as the turn of this number, from 2
    """
    with database.read() as connection:
        turn = _turn_of_calls(connection, calls, query=query, since=calls_since, may_answer=may_answer)
        if turn is None and chats_since is not None:
            keys = calls if answered is None else (answered,)
            turn = _turn_of_chat(connection, keys, query=query, since=chats_since)
    return turn


def _turn_of_calls(
    connection: Connection,
    keys: Sequence[str],
    *,
    query: Query,
    since: float,
    may_answer: Callable[[ArmName, int], bool],
) -> EarlierTurn | None:
    """The turn with the calls, if one outcome alone waits for these results. If none waits, and the same request came
    before, the stored turn.
    """
    if not keys:
        return None
    previous = query.request.get(PREVIOUS)
    named = "" if previous is None else " AND d.id = ?"
    values = [list(keys), since, *([] if previous is None else [previous]), _MOST_ALIKE]
    rows = run_statement(connection, _CALLS.format(named=named), *values)
    waiting = [row for row in rows if row["taken_by"] is None]
    if not waiting:
        return _repeated(connection, [row["taken_by"] for row in rows], query=query)
    calling = waiting[0]
    first = calling["turn_of"] or calling["id"]
    before = tool_turn_of(connection, calling["request"])
    began = run_statement(connection, "SELECT made_at FROM decisions WHERE id = ?", first)
    if len(waiting) > 1 or not began or began[0]["made_at"] <= since:
        return None
    number, arm = int(before.get("turn", 1)) + 1, ArmName(calling["arm"])
    if not (query.arms is None or arm in query.arms) or not may_answer(arm, number):
        return None
    link: dict[str, Json] = {"first": first, "previous": calling["id"], "turn": number}
    if not before and first != calling["id"]:
        link[BEGUN_BY] = calling["id"]
    elif BEGUN_BY in before:
        link[BEGUN_BY] = before[BEGUN_BY]
    if query.arm_by is None and query.arms is not None:
        link[PERMITTED] = list[Json](query.arms)
    return EarlierTurn(session=calling["session"], facts=facts_of({TOOL_TURN: link}), arm=arm)


def _repeated(connection: Connection, turns: Sequence[str], *, query: Query) -> EarlierTurn | None:
    """The stored turn with the same chat as `query`. A failed turn counts only if it has the same id as `query`."""
    chat = query.request.get(CHAT_HASH)
    for row in run_statement(connection, _REPEATED, list(turns), query.id) if turns and chat is not None else ():
        if edge_of(row["request"]).get(CHAT_HASH) == chat:
            is_permitted = query.arms is None or row["arm"] in query.arms
            return EarlierTurn(session=None, facts={}, same=DecisionId(row["id"])) if is_permitted else None
    return None


def _turn_of_chat(connection: Connection, keys: Sequence[str], *, query: Query, since: float) -> EarlierTurn | None:
    """The turn with the answer in a chat without an id; None if answers of several chats have one of the keys, or if
    another chat has continued the answer.
    """
    if not keys:
        return None
    read = select(decisions.c.id, decisions.c.session, outcomes.c.taken_by)
    read = read.join(outcomes, outcomes.c.decision_id == decisions.c.id).where(outcomes.c.call.in_(keys))
    read = read.where(decisions.c.made_at > since, decisions.c.session.startswith(DERIVED))
    alike = connection.execute(read.order_by(decisions.c.made_at.desc()).limit(_MOST_ALIKE)).all()
    if len({row.session for row in alike}) != 1:
        return None
    for row in alike:
        if row.taken_by is None:
            return EarlierTurn(session=row.session, facts=facts_of({CONTINUES: row.id}))
    taken_by = select(decisions.c.request).where(decisions.c.id.in_([row.taken_by for row in alike]))
    for request in connection.execute(taken_by).scalars():
        if edge_of(request).get(CONVERSATION) == query.request.get(CONVERSATION):
            return EarlierTurn(session=alike[0].session, facts={})
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenTask:
    first: DecisionId
    #: arm of the newest turn
    arm: ArmName
    turns: int
    until: float


def task_key(query: Query) -> str | None:
    """The key of the conversation's tasks; None without a session. Each agent and each model has tasks of its own."""
    if query.session is None:
        return None
    return body_hash(
        [query.tenant, query.api_key, query.session, query.request.get("agent"), query.request.get("asked_model")]
    )


def newest_tasks(database: Database, keys: Collection[str]) -> dict[str, OpenTask]:
    """Key -> newest task of the conversation, open or ended. Raises StoreError."""
    with database.look() as connection:
        rows = run_statement(connection, _NEWEST, sorted(keys))
    return {row.pop("key"): OpenTask(**row) for row in rows}


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
        if not run_statement(connection, _TAKE, key, previous):
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
