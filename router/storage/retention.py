"""Retention: deletes decisions that are too old, while the service runs.

A decision is deleted with its outcome, feedback, paired answers, updates and closures if no ledger waits for it, the
hourly totals include it, and every policy that learned it has a later snapshot. The newest update of a ledger stays.
Deleted rows are counted (`counters.GONE`), so counts of all time stay exact, and `verify` can check that no other row
is missing.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Final, get_args

from sqlalchemy import RowMapping, Table, and_, delete, exists, false, func, or_, select, tuple_, union_all

from ragbandit.router.storage.access.turn_sums import forget_sums
from ragbandit.router.storage.begun_pairs import forget_pairs
from ragbandit.router.storage.jobs.claims import ScoreKind, drop_jobs
from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.sql import tables
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import GONE, Increments, WriteTransaction
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.deadlines import DeadlineClock
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.positions import position_of
from ragbandit.router.storage.sql.tables import decisions, outcomes, policies, updates
from ragbandit.router.storage.totals import TRAFFIC, rewards_key

#: target duration of a transaction, seconds; it blocks other writers of SQLite
AIM_S: Final = 0.012
#: smallest and largest number of decisions per transaction
FEWEST, MOST = 16, 500
#: maximum duration of `step`, and duration of the lease after the last renewal, seconds
STEP_S, LEASE_S = 2.0, 60.0


class Retention:
    """Deletes old decisions. holder: name of this process in the lease. days: age from which decisions are deleted."""

    def __init__(
        self,
        database: Database,
        *,
        holder: str,
        days: float,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.database, self.holder = database, holder
        self.clock = clock or DeadlineClock(database).for_deletion
        self._days = days
        self._lease = Lease(database=database, name="retention")
        self._batch = FEWEST
        #: (made_at, id) of the decision that was read last
        self._after = (-math.inf, "")
        #: upper bounds of what may be deleted: times of decisions, times of outcomes, and label -> seq of updates
        self._made_before, self._ended_before = -math.inf, -math.inf
        self._last_seqs: dict[str, int] = {}

    def step(self) -> float | None:
        """Delete old decisions for at most STEP_S. Returns seconds until the next call should follow: 0.0 if more
        decisions may be old enough. Returns None if none are, or if another process has the lease.
        """
        if not self._lease.acquire(holder=self.holder, lease_s=LEASE_S):
            return None
        with self.database.read() as connection:
            self.update_bounds(connection)
        before = min(self.clock() - 86_400 * self._days, self._made_before)
        give_up = time.monotonic() + STEP_S
        while time.monotonic() < give_up:
            with WriteTransaction(self.database, foreign_keys=False) as (connection, tally):
                began = time.monotonic()
                last = self.delete_next(connection, before, limit=self._batch, tally=tally)
            duration_s = time.monotonic() - began
            self._after = last or (-math.inf, "")
            if last is None:
                return None
            self._batch = int(min(MOST, max(FEWEST, self._batch * min(1.25, max(0.5, AIM_S / duration_s)))))
            time.sleep(max(duration_s, 0.005))  # lets other writers write
        return 0.0

    def release(self) -> None:
        self._lease.release(holder=self.holder)

    def update_bounds(self, connection: Connection) -> None:
        """Update the bounds of the rows that may be deleted."""
        position = position_of(connection, TRAFFIC)
        for row in connection.execute(select(*policies.c["label", "retired_at"])).all():
            ledger = Ledger(self.database, label=row.label)
            newest = ledger.latest_snapshots(limit=1, connection=connection)
            ends = [newest[0].last_seq if newest else 0]
            if row.retired_at is None:
                ends.append(int(position_of(connection, rewards_key(row.label)).get("seq", 0)))
            self._last_seqs[row.label] = min(*ends, ledger.last_seq(connection=connection) - 1)
        # The totals still need the decisions of hours that they have not rechecked yet.
        self._made_before = min(position.get("decisions", [-math.inf])[0], 3600.0 * position.get("checked", 0))
        self._ended_before = position.get("outcomes", [-math.inf])[0]

    def delete_next(
        self, connection: Connection, before: float, *, limit: int, tally: Increments
    ) -> tuple[float, str] | None:
        """Read the next `limit` decisions made before the time `before`, and delete those that are not needed.

        Decisions locked by another transaction are skipped. While a ledger inherits decisions, none is read. Returns
        (made_at, id) of the last decision that was read; None if there is none.
        """
        order = decisions.c.made_at, decisions.c.id
        # The first condition lets the database use the index, which has no ids.
        span = order[0] >= self._after[0], order[0] < before, tuple_(*order) > tuple_(*self._after)
        query = select(*order).where(*span, ~exists().where(policies.c.inheriting.is_not(None)))
        rows = connection.execute(query.order_by(*order).limit(limit).with_for_update(skip_locked=True)).all()
        ids = self._not_needed(connection, [row.id for row in rows])
        last = (rows[-1].made_at, rows[-1].id) if rows else None
        if not ids:
            return last
        forget_sums(connection, ids, tally=tally)
        removed = Increments(GONE)
        connection.execute(delete(tables.units).where(tables.units.c.first.in_(ids)))
        are_turns = decisions.c.id.in_(ids), decisions.c.turn_of.is_not(None)
        turns = connection.execute(select(func.count()).select_from(decisions).where(*are_turns)).scalar_one()
        removed.add("decided", len(ids) - int(turns))
        feedback_rows = _delete(connection, tables.feedback, "late", ids=ids)
        removed.add("feedback", len(feedback_rows))
        removed.add("late_feedback", sum(row["late"] for row in feedback_rows))
        labels = [*self._last_seqs]
        removed.count_updates(_delete(connection, updates, "policy", "source", ids=ids, labels=labels))
        removed.count_closures(_delete(connection, tables.closures, "policy", "state", ids=ids, labels=labels))
        for kind in get_args(ScoreKind):
            drop_jobs(connection, ids, kind=kind, tally=tally)
        for table in (outcomes, tables.cancellations, tables.paired_answers):
            _delete(connection, table, "decision_id", ids=ids)
        forget_pairs(connection, ids)
        connection.execute(delete(decisions).where(decisions.c.id.in_(ids)))
        removed.write(connection, shard=0)
        return last

    def _not_needed(self, connection: Connection, ids: Sequence[str]) -> list[str]:
        new = [and_(updates.c.policy == label, updates.c.seq > seq) for label, seq in self._last_seqs.items()]
        needed = {
            tables.waiting: (),
            tables.jobs: (tables.jobs.c.kind == "answer",),
            outcomes: (outcomes.c.made_at >= self._ended_before,),
            updates: (or_(false(), *new),),
        }
        queries = [
            select(table.c.decision_id).where(table.c.decision_id.in_(ids), *where) for table, where in needed.items()
        ]
        return sorted(set(ids).difference(connection.execute(union_all(*queries)).scalars()))


def _delete(
    connection: Connection, table: Table, *names: str, ids: Sequence[str], labels: Sequence[str] | None = None
) -> Sequence[RowMapping]:
    """Delete the rows of these decisions; returns the columns `names`. labels: of the rows, if keys have one."""
    statement = delete(table).where(table.c.decision_id.in_(ids))
    if labels is not None:
        statement = statement.where(table.c.policy.in_(labels))
    return connection.execute(statement.returning(*table.c[names])).mappings().all()
