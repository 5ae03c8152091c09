"""Answer queue: the jobs of decisions that wait for a worker or are run by one.

The transaction that stores a decision inserts its job. The transaction that stores its outcome, or closes the decision,
deletes the job. So no decision is lost or answered twice. Worker processes claim the job with the lowest position in
the queue (the column `turn`).

The queue is fair to tenants: start-time fair queueing with one unit per decision (Goyal, Vin and Cheng 1997). A new
decision gets the position that is claimed next, or the position after its tenant's last unclaimed decision if that is
later. So a tenant with a thousand decisions delays the first decision of another tenant by one. Every step reads a few
rows of an index.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count, repeat
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import ColumnElement, case, select, update

from ragbandit.router.storage.access.reservations import billionths
from ragbandit.router.storage.jobs.claims import CLAIM_S, Claims
from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.rows.waiting import drop_answer_jobs
from ragbandit.router.storage.sql.bulk_insert import Rows, insert_rows, send
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.store_clock import CLOCK
from ragbandit.router.storage.sql.tables import jobs
from ragbandit.shared.processes.this_process import ProcessIdentity
from ragbandit.shared.types import NO_CONVERSATION, ArmName, Conversation, Decision, DecisionId

#: keys in a job's facts of a conversation's fields, dialect and headers
_FIELDS, _DIALECT, _HEADERS = "chat", "dialect", "headers"
#: in stores of earlier commits, the field that marks the dialect "messages" and contains the headers
_MARK: Final = "anthropic_headers"
_IS_ANSWER: Final = jobs.c.kind == "answer"
_IS_FREE: Final = jobs.c.claimed_by.is_(None)
_HAS_RUN: Final = jobs.c.tries > 0
#: position of decisions that a process claimed when they were stored, or that were moved to the front; other decisions
#: have higher positions
_FRONT: Final = 0
#: dialect -> query for the time and two positions. upcoming: the position that is claimed next; if no decision is free,
#: the highest claimed one, or 1. last: highest position of the tenant's free decisions, or 0
_POSITIONS: Final = {
    dialect: f"""
    SELECT {now} AS now, coalesce(
        (SELECT turn FROM jobs WHERE kind = 'answer' AND claimed_by IS NULL AND turn > {_FRONT} ORDER BY turn LIMIT 1),
        (SELECT max(turn) FROM jobs WHERE kind = 'answer' AND claimed_by IS NOT NULL),
        1
    ) AS upcoming,
    coalesce((SELECT max(turn) FROM jobs WHERE kind = 'answer' AND tenant = ? AND claimed_by IS NULL), 0) AS last
"""  # noqa: S608 # a number of ours
    for dialect, now in CLOCK.items()
}


def read_positions(
    connection: Connection, decisions: Iterable[Decision], *, claims: Collection[str] = ()
) -> Mapping[str, Rows]:
    """Send queries for the positions of decisions not in `claims`. Returns tenant -> function that returns the rows."""
    unclaimed = {decision.query.tenant for decision in decisions if decision.id not in claims}
    positions, now = dict[str, Rows](), f"SELECT {CLOCK[connection.dialect.name]} AS now"
    for tenant in {decision.query.tenant: None for decision in decisions}:
        query = (_POSITIONS[connection.dialect.name], tenant) if tenant in unclaimed else (now,)
        positions[tenant] = send(connection, *query)
    return positions


def enqueue(
    connection: Connection,
    decisions: Iterable[Decision],
    *,
    positions: Mapping[str, Rows],
    in_front: bool = False,
    claims: Mapping[DecisionId, str] = MappingProxyType({}),
    reserved: Mapping[DecisionId, float] = MappingProxyType({}),
) -> None:
    """Insert decisions, in the transaction that stores them.

    positions: from `read_positions`, in the same transaction
    in_front: whether workers take these decisions next
    claims: decision id -> key of the process that runs the decision; workers may claim other decisions
    reserved: decision id -> estimated dollars of its answer
    """
    by_tenant: dict[str, list[Decision]] = {}
    for decision in decisions:
        by_tenant.setdefault(decision.query.tenant, []).append(decision)
    rows = []
    for tenant, group in by_tenant.items():
        (row,) = positions[tenant]()
        # A claimed decision begins now. If its process ends, the decision is claimed next.
        needs_position = "upcoming" in row and not in_front
        following = count(max(row["upcoming"], row["last"] + 1)) if needs_position else repeat(_FRONT)
        rows += [
            {
                "kind": "answer",
                "decision_id": decision.id,
                "tenant": tenant,
                "arm": decision.arm,
                "turn": _FRONT if decision.id in claims else next(following),
                "made_at": decision.made_at,
                "due_at": decision.made_at,
                "tries": int(decision.id in claims),
                "claimed_by": claims.get(decision.id),
                "claimed_until": row["now"] + CLAIM_S if decision.id in claims else None,
                "api_key": decision.query.api_key,
                "reserved": billionths(reserved.get(decision.id, 0.0)),
                "facts": _conversation_json(decision.query.conversation),
            }
            for decision in group
        ]
    insert_rows(connection, jobs, rows)


def _conversation_json(conversation: Conversation) -> str:
    """The facts of a job, as JSON."""
    if not conversation:
        return "{}"
    facts = canonical({_DIALECT: conversation.dialect, _HEADERS: conversation.headers})
    return f'{{"{_FIELDS}":{conversation.encoding.body(conversation.fields).decode()},{facts[1:]}'


def _conversation(facts: Mapping[str, Any]) -> Conversation:
    """The conversation in the facts of a job."""
    fields = facts.get(_FIELDS)
    if not fields:
        return NO_CONVERSATION
    if _DIALECT not in facts and _MARK in fields:
        others = {name: value for name, value in fields.items() if name != _MARK}
        return Conversation(fields=others, dialect="messages", headers=fields[_MARK])
    return Conversation(fields=fields, dialect=facts.get(_DIALECT, "chat"), headers=facts.get(_HEADERS, {}))


def erase_chats(connection: Connection, ids: Collection[str]) -> None:
    """Blank the chats of these decisions; their jobs stay."""
    connection.execute(update(jobs).where(_IS_ANSWER, jobs.c.decision_id.in_(ids)).values(facts="{}"))


def move_to_front(connection: Connection, decision_id: str) -> bool:
    """Let this decision be claimed next. Returns whether the queue has it, claimed or not."""
    turn = case((_IS_FREE, _FRONT), else_=jobs.c.turn)
    moved = update(jobs).where(_IS_ANSWER, jobs.c.decision_id == decision_id).values(turn=turn)
    return bool(connection.execute(moved).rowcount)


def waiting_ids(database: Database, *, limit: int) -> list[DecisionId]:
    """Decisions that no process has claimed, in the order of the queue."""
    first = select(jobs.c.decision_id).where(_IS_ANSWER, _IS_FREE).order_by(jobs.c.turn, jobs.c.due_at)
    with database.read() as connection:
        return list(connection.execute(first.limit(limit)).scalars())


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedDecision:
    decision_id: DecisionId
    #: number of earlier runs, which all ended without an outcome
    tries: int
    #: the drawn arm; None if only its answer is scored
    arm: ArmName | None = None
    #: the client's request, for arms that pass it on; empty for other arms
    conversation: Conversation = NO_CONVERSATION
    #: a future that is completed when the run should stop
    stop: "Future[None]" = field(default_factory=Future)


class AnswerQueue(Claims):
    def __init__(self, database: Database, *, process: ProcessIdentity | None = None) -> None:
        super().__init__(database, kind="answer", process=process)

    def claim(
        self,
        *,
        has_run: bool | None = None,
        except_arms: Collection[ArmName] = (),
        within: Collection[ArmName] | None = None,
        only: DecisionId | None = None,
    ) -> ClaimedDecision | None:
        """Claim the next decision that meets all conditions, and count a try. Returns None if there is none.

        has_run: whether the decision has run before, in a process that ended; None for both.
        within: drawn arms that the decision may have; None for all. except_arms: arms that it must not have.
        """
        where: list[ColumnElement[bool]] = []
        if has_run is not None:
            where.append(_HAS_RUN if has_run else jobs.c.tries == 0)
        if within is not None:
            where.append(jobs.c.arm.in_(sorted(within)))
        if only is not None:
            where.append(jobs.c.decision_id == only)
        if except_arms:
            where.append(jobs.c.arm.not_in(sorted(except_arms)))
        if not self.has_free_job(*where):
            return None
        with self._database.write() as connection:
            row = self.take(connection, *where)
        if row is None:
            return None
        key, sent = row["decision_id"], _conversation(json.loads(row["facts"]))
        return ClaimedDecision(decision_id=key, tries=row["tries"] - 1, arm=row["arm"], conversation=sent)

    def has_interrupted(self, *, within: Collection[ArmName] | None = None, before: float | None = None) -> bool:
        """Whether a decision waits again because its process ended. before: only decisions made before this time."""
        where = [_HAS_RUN]
        if within is not None:
            where.append(jobs.c.arm.in_(sorted(within)))
        if before is not None:
            where.append(jobs.c.due_at < before)
        return self.has_free_job(*where)

    def drop(self, decision_id: DecisionId) -> None:
        """Remove the job of a decision that was deleted or already has an outcome."""
        with self._database.write() as connection:
            drop_answer_jobs(connection, [decision_id])
