"""What one append changes: decisions leave the waiting room as updates and closures, and their feedback is in time or
late. Every step writes in the transaction that `Ledger.append` has opened, in the order in which it takes its locks.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, insert, select, update

from ragbandit.router.storage import answer_queue
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.rows.conversion import update_row
from ragbandit.router.storage.sql.counters import Moves
from ragbandit.router.storage.sql.tables import closures, decisions, feedback, policies, updates, waiting
from ragbandit.router.storage.sql.waiting import reset_feedback_flags, take_out
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import ClosedDecision, Feedback, FeedbackId, JoinedDecision, Json, PolicyLabel, Update


@dataclass(kw_only=True, slots=True)
class LedgerBatch:
    """Decisions that leave the waiting room of one ledger together, and what waits on with them."""

    label: PolicyLabel
    now: float
    #: who appends, and has the lease
    holder: str
    #: what is learned, with its rows of `updates`
    updates: list[Update] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: feedback that came in time, used or not; other feedback of the decisions is late
    in_time: list[FeedbackId] = field(default_factory=list)
    closed: list[ClosedDecision] = field(default_factory=list)
    #: decisions that wait on, since none of the feedback that was read with them may be learned
    idle: list[JoinedDecision] = field(default_factory=list)
    #: new versions of the ledger's arms as JSON; None if they have not changed
    arms: str | None = None

    def __len__(self) -> int:
        return len(self.updates) + len(self.closed) + len(self.idle)

    def learn(self, update: Update, *, feedback: Sequence[Feedback], disagreement: float | None) -> None:
        """Append an update that this feedback made. disagreement: how far its raters lie apart in quality."""
        feedback_at = max((item.received_at for item in feedback), default=None)
        self.updates.append(update)
        self.rows.append(update_row(update, feedback_at=feedback_at, disagreement=disagreement))

    @property
    def done(self) -> list[str]:
        """The decisions that leave."""
        return [*(one.decision_id for one in self.updates), *(one.decision_id for one in self.closed)]

    def write(self, connection: Connection, moves: Moves, *, end: int) -> None:
        """All steps. end: the last seq of the ledger. Raises Conflict, after which nothing may be committed."""
        if self.updates and self.updates[0].seq != end + 1:
            raise Conflict(f"the ledger ends at {end}, not at {self.updates[0].seq - 1}")
        here = waiting.c.policy == self.label, waiting.c.decision_id.in_(self.done)
        if len(take_out(connection, *here, moves=moves)) != len(self.done):
            raise Conflict("another learner has already closed a decision of this batch")
        answer_queue.remove(connection, self.done, running=False)
        closed = [{"policy": self.label, "made_at": self.now, **asdict(closure)} for closure in self.closed]
        for table, rows in ((updates, self.rows), (closures, closed)):
            if rows:
                connection.execute(insert(table), rows)
        moves.updates(self.rows)
        moves.closures(closed)
        read: dict[str, int] = {one.decision.id: len(one.feedback) for one in self.idle}
        reset_feedback_flags(connection, read, label=self.label, moves=moves)
        # Late is what came too late for the ledger that decided; another ledger may still learn from it.
        ours = select(decisions.c.id).where(decisions.c.id.in_(self.done), decisions.c.policy == self.label)
        late = feedback.c.decision_id.in_(ours), feedback.c.id.not_in(self.in_time), ~feedback.c.late
        moves.add("late_feedback", connection.execute(update(feedback).where(*late).values(late=True)).rowcount)
        # The audit log before the row of `policies`, as where a ledger is registered.
        for one in (one for one in self.updates if one.restarts):
            facts: dict[str, Json] = {"arms": list(one.restarts), "seq": one.seq}
            actor = f"process:{self.holder}"
            record(connection, actor=actor, action="ledger.restart", target=f"ledger:{self.label}", facts=facts)
        if self.arms is not None:
            connection.execute(update(policies).where(policies.c.label == self.label).values(arms=self.arms))
