"""Cancellations: callers ask for the end of an answer that workers have not finished."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import select

from ragbandit.router.storage.decisions.feedback_writes import unknown_decision
from ragbandit.router.storage.decisions.store import DecisionStore
from ragbandit.router.storage.jobs import answers
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import cancellations, decisions, outcomes
from ragbandit.shared.errors import Conflict
from ragbandit.shared.model_servers.failures import successor_of
from ragbandit.shared.types import CANCELLED, Cost, DecisionId, Outcome, OutcomeStatus, PolicyLabel


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancellation:
    decision_id: DecisionId
    #: whether the answer was cancelled; None until the run has ended
    cancelled: bool | None
    #: status of the outcome; None if there is no outcome yet
    status: OutcomeStatus | None


def cancel(database: Database, *, decision_id: DecisionId, now: float) -> Cancellation:
    """Cancel an answer that has no outcome yet; after a failover, the successor's. Raises NotFound, Conflict."""
    with database.write() as connection:
        query = select(decisions.c.run_by, decisions.c.policy).where(decisions.c.id == decision_id)
        decision = connection.execute(query).first()
        if decision is None:
            raise unknown_decision()
        if decision.run_by != "worker":
            remedy = "stop it there, and report the outcome yourself"
            raise Conflict("your own stack runs this decision, not our workers", field="decision_id", remedy=remedy)
        query = select(*outcomes.c["status", "stop_reason", "made_by"]).where(outcomes.c.decision_id == decision_id)
        outcome = connection.execute(query).first()
        if outcome is None:
            row = {"decision_id": decision_id, "asked_at": now}
            insert_new(connection, cancellations, [row], key="decision_id")
            if answers.move_to_front(connection, decision_id):
                return Cancellation(decision_id=decision_id, cancelled=None, status=None)
    if outcome is None:  # the decision was closed without an outcome, and no worker will write one
        store = DecisionStore(database, label=PolicyLabel(decision.policy))
        store.add_outcome(_closed_unanswered(decision_id, now=now))
        return cancel(database, decision_id=decision_id, now=now)
    successor = successor_of(object_or_empty(outcome.made_by))
    if successor is not None:
        return cancel(database, decision_id=successor, now=now)
    cancelled = (outcome.status, outcome.stop_reason) == ("failed", CANCELLED)
    return Cancellation(decision_id=decision_id, cancelled=cancelled, status=outcome.status)


def cancellations_of(database: Database, *, ids: Collection[DecisionId]) -> set[DecisionId]:
    """The decisions among `ids` that callers asked to cancel."""
    if not ids:
        return set()
    query = select(cancellations.c.decision_id).where(cancellations.c.decision_id.in_(ids))
    with database.read() as connection:
        return {DecisionId(key) for key in connection.execute(query).scalars()}


def _closed_unanswered(decision_id: DecisionId, *, now: float) -> Outcome:
    return Outcome(
        decision_id=decision_id,
        status="failed",
        answer=None,
        trace=(),
        cost=Cost(),
        steps=0.0,
        stop_reason=CANCELLED,
        error="cancelled by the caller after it had closed unanswered",
        run_by="worker",
        made_by={},
        made_at=now,
    )
