"""Cancellation: decisions that callers do not want answered any more.

SQL has the requests: a worker that misses the notification finds them here. A request changes no outcome. The worker
that has the decision, or takes it next, writes the outcome with what it cost. Only where a decision has left the answer
queue unanswered, since every ledger has closed it, no worker will come: then the outcome is written here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select

from ragbandit.router.serving.checks.reports import unrun_outcome
from ragbandit.router.storage import answer_queue
from ragbandit.router.storage.decisions.idempotency import unknown_decision
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import cancellations, decisions, outcomes
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import CANCELLED, DecisionId, OutcomeStatus, PolicyLabel

_CLOSED = "cancelled by the caller after it had closed unanswered"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancellation:
    """State of a decision that somebody wants cancelled."""

    decision_id: DecisionId
    #: whether it ended by being cancelled; None while a worker has still to end it
    cancelled: bool | None
    #: of its outcome; None while there is none
    status: OutcomeStatus | None


def request(database: Database, *, decision_id: DecisionId, now: float) -> Cancellation:
    """Record that nobody wants the answer, unless there is an outcome already. A second time changes nothing.

    Raises NotFound, or Conflict for a decision that the caller's own stack runs.
    """
    with database.write() as connection:
        query = select(decisions.c.run_by, decisions.c.policy).where(decisions.c.id == decision_id)
        decision = connection.execute(query).first()
        if decision is None:
            raise unknown_decision()
        if decision.run_by != "worker":
            raise Conflict(
                "your own stack runs this decision, not our workers",
                field="decision_id",
                remedy="stop it there, and report the outcome yourself",
            )
        ended = connection.execute(
            select(outcomes.c.status, outcomes.c.stop_reason).where(outcomes.c.decision_id == decision_id)
        ).first()
        if ended is None:
            row = {"decision_id": decision_id, "asked_at": now}
            insert_new(connection, cancellations, [row], key="decision_id")
            if answer_queue.move_to_front(connection, decision_id):
                return Cancellation(decision_id=decision_id, cancelled=None, status=None)
    if ended is None:
        DecisionStore(database, label=PolicyLabel(decision.policy)).add_outcome(
            unrun_outcome(decision_id, stop_reason=CANCELLED, error=_CLOSED, now=now)
        )
        return request(database, decision_id=decision_id, now=now)
    cancelled = (ended.status, ended.stop_reason) == ("failed", CANCELLED)
    return Cancellation(decision_id=decision_id, cancelled=cancelled, status=ended.status)


def requested(database: Database, *, ids: Iterable[DecisionId]) -> set[DecisionId]:
    """Those among these decisions that are to be cancelled."""
    wanted = list(ids)
    if not wanted:
        return set()
    with database.read() as connection:
        rows = connection.execute(select(cancellations.c.decision_id).where(cancellations.c.decision_id.in_(wanted)))
        return {DecisionId(key) for key in rows.scalars()}
