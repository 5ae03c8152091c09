"""What one append changes: decisions leave the waiting room as updates and closures, and their feedback is in time or
late. Every step writes in the transaction that `Ledger.append` has opened, in the order in which it takes its locks.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, select, update

from ragbandit.router.storage import answer_queue
from ragbandit.router.storage.access.audit_log import record
from ragbandit.router.storage.rows.conversion import update_row
from ragbandit.router.storage.sql.counters import Moves
from ragbandit.router.storage.sql.tables import closures, decisions, feedback, policies, updates, waiting
from ragbandit.router.storage.sql.waiting import lock_rows, reset_feedback_flags
from ragbandit.shared.errors import Conflict
from ragbandit.shared.types import ClosedDecision, FeedbackId, JoinedDecision, Json, PolicyLabel, Update


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An update to append, and when the last feedback that made it came in."""

    update: Update
    feedback_at: float | None
    #: what came in time, used or not; other feedback of the decision is late
    in_time: tuple[FeedbackId, ...] = ()
    #: how far its raters lie apart in quality; None: there were not two to compare
    disagreement: float | None = None

    def row(self) -> dict[str, Any]:
        """Its row of `updates`."""
        return update_row(self.update, feedback_at=self.feedback_at, disagreement=self.disagreement)


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerBatch:
    """Decisions that leave the waiting room of one ledger together, and what waits on with them."""

    label: PolicyLabel
    entries: Sequence[Entry]
    closed: Sequence[ClosedDecision] = ()
    #: decisions that wait on, since none of the feedback that was read with them may be learned
    idle: Sequence[JoinedDecision] = ()
    now: float
    #: who appends, and has the lease
    holder: str
    #: what the ledger knows of its arms from now on, JSON; None: as before
    arms: str | None = None

    @property
    def done(self) -> list[str]:
        """The decisions that leave."""
        return [*(e.update.decision_id for e in self.entries), *(c.decision_id for c in self.closed)]

    def write(self, connection: Connection, moves: Moves, *, end: int) -> None:
        """All steps. end: the last seq of the ledger. Raises Conflict, after which nothing may be committed."""
        self._check_place(end)
        self._leave_waiting(connection, moves)
        self._append_updates(connection, moves)
        self._append_closures(connection, moves)
        read: dict[str, int] = {one.decision.id: len(one.feedback) for one in self.idle}
        reset_feedback_flags(connection, read, label=self.label, moves=moves)
        self._mark_late(connection, moves)
        self._note_arms(connection)

    def _check_place(self, end: int) -> None:
        if self.entries and self.entries[0].update.seq != end + 1:
            raise Conflict(f"the ledger ends at {end}, not at {self.entries[0].update.seq - 1}")

    def _leave_waiting(self, connection: Connection, moves: Moves) -> None:
        """Take the decisions out of the waiting room, all of which must be there."""
        here = and_(waiting.c.policy == self.label, waiting.c.decision_id.in_(self.done))
        moves.waiting(lock_rows(connection, here), sign=-1)
        if connection.execute(delete(waiting).where(here)).rowcount != len(self.done):
            raise Conflict("a decision of this batch was closed by somebody else")
        answer_queue.remove(connection, self.done, running=False)

    def _append_updates(self, connection: Connection, moves: Moves) -> None:
        if not self.entries:
            return
        rows = [entry.row() for entry in self.entries]
        connection.execute(insert(updates), rows)
        moves.updates(rows)

    def _note_arms(self, connection: Connection) -> None:
        """What is known of the arms, and in the audit log where one restarts."""
        if self.arms is not None:
            connection.execute(update(policies).where(policies.c.label == self.label).values(arms=self.arms))
        for one in (entry.update for entry in self.entries if entry.update.restarts):
            facts: dict[str, Json] = {"arms": list(one.restarts), "seq": one.seq}
            actor = f"process:{self.holder}"
            record(connection, actor=actor, action="ledger.restart", target=f"ledger:{self.label}", facts=facts)

    def _append_closures(self, connection: Connection, moves: Moves) -> None:
        if not self.closed:
            return
        rows = [{"policy": self.label, "made_at": self.now, **asdict(closure)} for closure in self.closed]
        connection.execute(insert(closures), rows)
        moves.closures(rows)

    def _mark_late(self, connection: Connection, moves: Moves) -> None:
        """Late is what came too late for the ledger that decided; another ledger may still learn from it."""
        in_time = [key for e in self.entries for key in (*e.update.feedback_ids, *e.in_time)]
        ours = select(decisions.c.id).where(decisions.c.id.in_(self.done), decisions.c.policy == self.label)
        late = update(feedback).where(feedback.c.decision_id.in_(ours), feedback.c.id.not_in(in_time), ~feedback.c.late)
        moves.add("late_feedback", connection.execute(late.values(late=True)).rowcount)
