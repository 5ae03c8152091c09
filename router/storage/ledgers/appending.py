"""The batch that `Ledger.append` writes: updates or closures in place of rows of `waiting`, and late feedback."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import insert, select, update

from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.access.turn_sums import forget_sums
from ragbandit.router.storage.rows.conversion import update_row
from ragbandit.router.storage.rows.waiting import delete_waiting, drop_answer_jobs, reset_feedback_flags
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Increments
from ragbandit.router.storage.sql.tables import closures, decisions, feedback, policies, updates, waiting
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import ClosedDecision, Feedback, FeedbackId, JoinedDecision, Json, PolicyLabel, Update


@dataclass(kw_only=True, slots=True)
class LedgerBatch:
    label: PolicyLabel
    now: float
    holder: str
    #: updates of the learned decisions, and their rows for the table `updates`
    updates: list[Update] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: feedback that arrived in time, used or not; other feedback of the decisions is late
    in_time: list[FeedbackId] = field(default_factory=list)
    closed: list[ClosedDecision] = field(default_factory=list)
    #: decisions that stay in `waiting`, since none of their feedback so far may be learned
    idle: list[JoinedDecision] = field(default_factory=list)
    #: new versions of the ledger's arms as JSON; None if no version has changed
    arms: str | None = None

    def __len__(self) -> int:
        return len(self.updates) + len(self.closed) + len(self.idle)

    def add_update(self, update: Update, *, feedback: Sequence[Feedback]) -> None:
        """Add an update with its feedback."""
        feedback_at = max((item.received_at for item in feedback), default=None)
        self.updates.append(update)
        self.rows.append(update_row(update, feedback_at=feedback_at))

    @property
    def done(self) -> list[str]:
        """Ids of the decisions that are learned or closed."""
        return [entry.decision_id for entry in self.updates] + [closure.decision_id for closure in self.closed]

    def write(self, connection: Connection, tally: Increments, *, end: int) -> None:
        """Write the batch. Raises Conflict; then the transaction must be rolled back. end: the ledger's last seq."""
        # The order of the steps is the order in which all writers lock rows.
        if self.updates and self.updates[0].seq != end + 1:
            raise Conflict(f"the ledger ends at {end}, so update {self.updates[0].seq} is not the next one")
        leaving = waiting.c.policy == self.label, waiting.c.decision_id.in_(self.done)
        if len(delete_waiting(connection, *leaving, tally=tally)) != len(self.done):
            raise Conflict("another learner has already closed a decision of this batch")
        removed = drop_answer_jobs(connection, self.done, running=False)
        closed = [{"policy": self.label, "made_at": self.now, **asdict(closure)} for closure in self.closed]
        for table, rows in ((updates, self.rows), (closures, closed)):
            if rows:
                connection.execute(insert(table), rows)
        unanswered = [row["decision_id"] for row in removed()]
        if unanswered:  # these sums contain estimates of the removed jobs, and are computed again
            forget_sums(connection, unanswered, tally=tally)
        tally.count_updates(self.rows)
        tally.count_closures(closed)
        read: dict[str, int] = {joined.decision.id: len(joined.feedback) for joined in self.idle}
        reset_feedback_flags(connection, read, label=self.label, tally=tally)
        # Feedback is late if it came too late for the ledger that decided; another ledger may still learn from it.
        own_decisions = select(decisions.c.id).where(decisions.c.id.in_(self.done), decisions.c.policy == self.label)
        late = feedback.c.decision_id.in_(own_decisions), feedback.c.id.not_in(self.in_time), ~feedback.c.late
        tally.add("late_feedback", connection.execute(update(feedback).where(*late).values(late=True)).rowcount)
        # The audit log is locked before the row of `policies`, as in `register_policy`.
        for entry in self.updates:
            if entry.restarts:
                restart: dict[str, Json] = {"arms": list(entry.restarts), "seq": entry.seq}
                actor, target = f"process:{self.holder}", f"ledger:{self.label}"
                record(connection, actor=actor, action="ledger.restart", target=target, facts=restart)
        if self.arms is not None:
            connection.execute(update(policies).where(policies.c.label == self.label).values(arms=self.arms))
