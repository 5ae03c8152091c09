"""Finds the earlier turn that a request continues. Five keys can name it.

A *turn* is a request with its answer, and a *task* is all turns that one decision decides. Results of tools continue
the turn with the calls. A session, a conversation or an agent names a task and not a turn in it.

1. Results of calls (`calls_key`, `outcomes.call`). They are accepted once (`take_answers`), so the turns that bring
   them form a chain.
2. The text of an answer (`answer_key`, `outcomes.call`), in a chat without an id. Chats of several users may begin
   alike, so an answer is continued once, too, except by the same chat sent again.
3. The previous response. The addition `responses` gives the request the session and the messages of that response. Only
   calls of that response's decision are considered.
4. The session, in a header or a field of the body (`task_key`, `units.key`). It names a task. The step `Tasks` finds
   the tasks of all questions that are decided together by one statement (`newest_tasks`).
5. The message id, in a header. It names the answer to this request, so that a later rating from another system finds
   the decision. No request is continued by it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select, update

from ragbandit.router.storage.decisions.turns import loop_of, read_continues
from ragbandit.router.storage.rows.conversion import body_hash
from ragbandit.router.storage.sql.bulk_insert import run_statement
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import decisions, outcomes
from ragbandit.shared.errors import Conflict, RagBanditError
from ragbandit.shared.types import DERIVED, ArmName, Decision, DecisionId, Loop, Outcome, Query, call_ids

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
#: maximum number of outcomes with the same key that are read, newest first
_MOST_ALIKE: Final = 64


def calls_key(conversation: str | None, calls: Sequence[str]) -> str | None:
    """The key by which results find the turn with these calls; None if an id of a call is empty or repeated.

    conversation: hash of the caller and of the messages before the calls; None if the request was not a chat
    """
    if conversation is None or len({*calls}) < max(1, len(calls)) or not all(map(str.strip, calls)):
        return None
    return body_hash([conversation, *sorted(calls)])


def answer_key(conversation: str | None, answer: str | None) -> str | None:
    """The key by which the next question of a chat without an id finds this answer; None without a text.

    It is the hash of the chat with the answer as its last message, see `hash_conversation`. conversation: as in
    `calls_key`
    """
    text = "".join((answer or "").split())
    return body_hash([conversation, "assistant", "", text]) if text and conversation is not None else None


def continuation_key(outcome: Outcome, *, request: str | None, session: str | None = None) -> str | None:
    """The key by which a later request finds this outcome, for the column `call`; None if no request can.

    request, session: columns of the decision
    """
    calls = call_ids(outcome)
    if not calls and (session is None or not session.startswith(DERIVED)):
        return None
    conversation = read_continues(request).conversation
    return calls_key(conversation, calls) if calls else answer_key(conversation, outcome.answer)


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierTurn:
    """The turn that a request continues."""

    session: str | None
    #: the loop of tools; None if the request brings no results
    loop: Loop | None = None
    #: the decision whose answer the request continues; None if the request brings results, or repeats a continuation
    answer: DecisionId | None = None
    #: the arm that made the calls and gets their results; None if the request brings no results
    arm: ArmName | None = None
    #: the stored turn of the same request; None if the request came for the first time
    same: DecisionId | None = None


def earlier_turn(
    database: Database,
    query: Query,
    *,
    calls: Sequence[str],
    answered: str | None,
    calls_since: float,
    chats_since: float | None,
    arms: Collection[ArmName],
    turns_most: int,
) -> EarlierTurn | None:
    """Find the turn that a request continues. Returns None without such a turn, or if several turns are possible, since
    they may be of different users. Raises StoreError.

    Results go to the arm of their calls. If it may not answer them, the request can still belong to the calls' chat.

    calls: see `calls_key`; () if the request does not end with results. answered: key of the last answer, or None.
    calls_since, chats_since: older turns are left out. If `chats_since` is None, the request belongs to no task, or
        something else names the task.
    arms: arms that may get results. turns_most: largest `Loop.turn` of a turn with results, at least 2
    """
    with database.read() as connection:
        turn = _turn_of_calls(connection, calls, query=query, since=calls_since, arms=arms, turns_most=turns_most)
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
    arms: Collection[ArmName],
    turns_most: int,
) -> EarlierTurn | None:
    """The turn with the calls, if exactly one outcome has these calls and no results yet. If all such outcomes have
    results, the stored turn of the same request that brought them. Otherwise None.
    """
    if not keys:
        return None
    previous = query.continues.previous
    named = "" if previous is None else " AND d.id = ?"
    values = [list(keys), since, *([] if previous is None else [previous]), _MOST_ALIKE]
    rows = run_statement(connection, _CALLS.format(named=named), *values)
    unanswered = [row for row in rows if row["taken_by"] is None]
    if not unanswered:
        return _repeated(connection, [row["taken_by"] for row in rows], query=query)
    calling = unanswered[0]
    first = calling["turn_of"] or calling["id"]
    before = loop_of(connection, calling["request"])
    began = run_statement(connection, "SELECT made_at FROM decisions WHERE id = ?", first)
    if len(unanswered) > 1 or not began or began[0]["made_at"] <= since:
        return None
    number, arm = (1 if before is None else before.turn) + 1, ArmName(calling["arm"])
    if number > turns_most or arm not in arms or not (query.arms is None or arm in query.arms):
        return None
    begun_by = before.begun_by if before is not None else calling["id"] if first != calling["id"] else None
    permitted = query.arms if query.arm_by is None else None
    loop = Loop(first=first, previous=calling["id"], turn=number, begun_by=begun_by, permitted=permitted)
    return EarlierTurn(session=calling["session"], loop=loop, arm=arm)


def _repeated(connection: Connection, turns: Sequence[str], *, query: Query) -> EarlierTurn | None:
    """The stored turn with the same chat as `query`. A failed turn counts only if it has the same id as `query`."""
    chat = query.continues.chat
    for row in run_statement(connection, _REPEATED, list(turns), query.id) if turns and chat is not None else ():
        if read_continues(row["request"]).chat == chat:
            is_permitted = query.arms is None or row["arm"] in query.arms
            return EarlierTurn(session=None, same=DecisionId(row["id"])) if is_permitted else None
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
            return EarlierTurn(session=row.session, answer=row.id)
    taken_by = select(decisions.c.request).where(decisions.c.id.in_([row.taken_by for row in alike]))
    for request in connection.execute(taken_by).scalars():
        if read_continues(request).conversation == query.continues.conversation:
            return EarlierTurn(session=alike[0].session)
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
    return body_hash([query.tenant, query.api_key, query.session, query.sent.agent, query.sent.asked_model])


def newest_tasks(database: Database, keys: Collection[str]) -> dict[str, OpenTask]:
    """Key -> newest task of the conversation, open or ended. Raises StoreError."""
    with database.connection() as connection:
        rows = run_statement(connection, _NEWEST, sorted(keys))
    return {row.pop("key"): OpenTask(**row) for row in rows}


def _continued(decision: Decision) -> tuple[str, str] | None:
    """Returns (decision whose calls or answer are continued, RESULTS or ANSWER); None if nothing is continued."""
    continues = decision.query.continues
    if continues.loop is not None:
        return continues.loop.previous, RESULTS
    return None if continues.answer is None else (continues.answer, ANSWER)


def take_answers(connection: Connection, new: Iterable[Decision]) -> dict[DecisionId, RagBanditError]:
    """Mark the calls and answers that new turns continue as taken. Deletes a decision if another decision came first.
    Returns deleted decision -> error.
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
        run_statement(connection, "DELETE FROM decisions WHERE id IN ?", [*errors])
    return errors


def give_back_answers(connection: Connection, refused: Iterable[Decision]) -> None:
    """Undo `take_answers` of decisions that are not stored after all."""
    for decision in refused:
        if (continued := _continued(decision)) is not None:
            taken = update(outcomes).where(outcomes.c.decision_id == continued[0])
            connection.execute(taken.where(outcomes.c.taken_by == decision.id).values(taken_by=None))
