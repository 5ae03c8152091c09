"""Status of a ledger, read from the database: counters, lag, quarantine. One source for HTTP and command line."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from ragbandit.router.errors import NotFound
from ragbandit.router.policies.base import Policy
from ragbandit.router.storage.closing import MISSING_OUTCOME, UNANSWERED, ClosingRule
from ragbandit.router.storage.ledger import Ledger
from ragbandit.router.storage.tables import closures, decisions, feedback, policies, updates, waiting
from ragbandit.router.types import Counters

__all__ = ["Status", "check_registered", "counters", "quarantined", "status"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """Counters of a ledger, and how far learning is behind."""

    counters: Counters
    last_seq: int
    snapshot: str | None
    snapshot_last_seq: int
    #: updates in the ledger that the newest snapshot does not have
    behind: int
    #: seconds for which the oldest decision that could be learned has not been; 0 if there is none
    lag_s: float
    #: decisions that our workers still have to answer
    unanswered: int
    #: decisions run by callers that have feedback and cannot be learned before their outcome is reported
    missing_outcome: int


def check_registered(ledger: Ledger) -> None:
    """Raises NotFound, naming those that are there, for a ledger that no router and no import has opened.

    Decisions have a place in the ledgers that are known alone: the counters of another one cannot balance.
    """
    with ledger.database.read() as connection:
        labels = sorted(connection.execute(select(policies.c.label)).scalars())
    if ledger.label not in labels:
        remedy = (
            f"give --label: {', '.join(labels)}" if labels else "there is none yet: start a router, or import a log"
        )
        raise NotFound(f"the store has no ledger {ledger.label!r}", field="label", remedy=remedy)


def counters(ledger: Ledger) -> Counters:
    """Counted from the tables, each on its own; `balanced` says whether they add up."""
    label = ledger.label
    with ledger.database.read() as connection:

        def count(table: Any, *where: Any) -> int:
            return int(connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one())

        return Counters(
            decided=count(decisions),
            learned=count(updates, updates.c.policy == label, updates.c.source == "explicit"),
            defaulted=count(updates, updates.c.policy == label, updates.c.source == "default"),
            waiting=count(waiting, waiting.c.policy == label),
            closed=count(closures, closures.c.policy == label, closures.c.state == "closed"),
            quarantined=count(closures, closures.c.policy == label, closures.c.state == "quarantined"),
            feedback=count(feedback),
            late_feedback=count(feedback, feedback.c.late),
        )


def status(ledger: Ledger, *, serving: Policy | None, rule: ClosingRule, now: float) -> Status:
    """Counters, and how far learning is behind.

    serving: any instance of the ledger's policy; None where it has
    none: what was imported and has no policy is not behind.
    """
    last_seq = ledger.last_seq()
    newest = next(
        iter(
            ledger.latest_snapshots(
                limit=1,
                algorithm=None if serving is None else serving.algorithm,
                params=None if serving is None else serving.params,
            )
        ),
        None,
    )
    with ledger.database.read() as connection:
        oldest = connection.execute(
            select(feedback.c.received_at, waiting.c.decided_at)
            .join(waiting, waiting.c.decision_id == feedback.c.decision_id)
            .where(waiting.c.policy == ledger.label, rule.learnable_rows(now=now))
            .order_by(feedback.c.received_at)
            .limit(1)
        ).first()
        unanswered = connection.execute(
            select(func.count()).select_from(waiting).where(waiting.c.policy == ledger.label, UNANSWERED)
        ).scalar_one()
        missing = connection.execute(
            select(func.count()).select_from(waiting).where(waiting.c.policy == ledger.label, MISSING_OUTCOME)
        ).scalar_one()
    return Status(
        counters=counters(ledger),
        last_seq=last_seq,
        snapshot=None if newest is None else newest.version,
        snapshot_last_seq=0 if newest is None else newest.last_seq,
        behind=0 if serving is None else last_seq - (0 if newest is None else newest.last_seq),
        lag_s=0.0 if oldest is None else max(0.0, now - max(oldest.received_at, oldest.decided_at + rule.wait_s)),
        unanswered=unanswered,
        missing_outcome=missing,
    )


def quarantined(ledger: Ledger, *, limit: int = 100) -> list[Mapping[str, Any]]:
    """The quarantined decisions, newest first: decision_id, field, reason, made_at."""
    with ledger.database.read() as connection:
        rows = connection.execute(
            select(closures.c.decision_id, closures.c.field, closures.c.reason, closures.c.made_at)
            .where(closures.c.policy == ledger.label, closures.c.state == "quarantined")
            .order_by(closures.c.made_at.desc())
            .limit(limit)
        ).mappings()
        return [dict(row) for row in rows]
