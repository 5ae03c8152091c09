"""Retention: the oldest decisions leave the store, by age or because it is too large, while traffic goes on.

A decision leaves with its outcome, feedback, updates and closures if no ledger waits for it, the hourly totals include
it, and a snapshot after it exists of every policy that learned it. The newest update of a ledger stays. The counters
count what left (`counters.GONE`), so counts of all time stay exact, and `verify` checks that nothing else is missing.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    RowMapping,
    Select,
    Table,
    and_,
    delete,
    exists,
    false,
    or_,
    select,
    text,
    tuple_,
    union_all,
)

from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.outcome_rows import JobKind, drop_jobs
from ragbandit.router.storage.sql.counters import ALL, GONE, Moves, counting, gone, kept
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.tables import (
    answer_queue,
    cancellations,
    closures,
    decisions,
    feedback,
    outcomes,
    policies,
    updates,
    waiting,
)
from ragbandit.router.storage.totals import TRAFFIC, position_of, rewards_reader

#: what one transaction should take, seconds: on SQLite other writers wait for it
AIM_S: Final = 0.015
#: decisions that one transaction looks at
FEWEST, MOST = 8, 500
#: how long a step goes on, and how long its lease lasts, seconds
STEP_S, LEASE_S = 2.0, 60.0
#: The pages of PostgreSQL stay after their rows left. Pages of `decisions` without rows are taken for all of them.
_SIZE: Final = {
    "sqlite": "SELECT (page_count - freelist_count) * page_size"
    " FROM pragma_page_count, pragma_freelist_count, pragma_page_size",
    "postgresql": "WITH whole AS (SELECT pg_relation_size('decisions') / current_setting('block_size')::int AS pages)"
    " SELECT (SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables WHERE schemaname = current_schema())"
    " * (SELECT count(DISTINCT (ctid::text::point)[0]) / least(1.0, 2000.0 / greatest(pages, 1)) / greatest(pages, 1)"
    " FROM decisions TABLESAMPLE SYSTEM ((SELECT least(100, 200000.0 / greatest(pages, 1)) FROM whole))) FROM whole",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bounds:
    """What may leave now."""

    #: decisions made before
    made_before: float
    #: with outcomes stored before
    ended_before: float
    #: label -> last seq that may leave
    last_seqs: dict[str, int]


class Retention:
    """Lets decisions leave one store. days, gb: settings of `retention`. holder: names this process in the lease."""

    def __init__(
        self,
        database: Database,
        *,
        holder: str,
        days: float | None = None,
        gb: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.database, self.holder, self.clock = database, holder, clock
        self._days, self._gb = days, gb
        self._lease = Lease(database=database, name="retention")
        self._batch = FEWEST
        self._after = (-math.inf, "")

    def step(self) -> float | None:
        """Let decisions leave for STEP_S; 0 if more may be due, None if not or if another process does it."""
        if not self._lease.acquire(holder=self.holder, lease_s=LEASE_S):
            return None
        with self.database.read() as connection:
            bounds, excess = self._bounds(connection), self._excess(connection)
        old = -math.inf if self._days is None else self.clock() - 86_400 * self._days
        give_up = time.monotonic() + STEP_S
        while time.monotonic() < give_up:
            until = bounds.made_before if excess > 0 else min(old, bounds.made_before)
            with counting(self.database, foreign_keys=False) as (connection, moves):
                began = time.monotonic()
                seen, left = _leave(connection, self._after, until, bounds=bounds, limit=self._batch, moves=moves)
            if not seen:
                self._after = (-math.inf, "")
                return None
            took = time.monotonic() - began
            self._after, excess = seen[-1], excess - left
            self._batch = int(min(MOST, max(FEWEST, self._batch * min(1.25, max(0.5, AIM_S / took)))))
            time.sleep(max(took, 0.005))  # for other writers
        return 0.0

    def release(self) -> None:
        """Let another process go on."""
        self._lease.release(holder=self.holder)

    def _bounds(self, connection: Connection) -> _Bounds:
        position, last_seqs = position_of(connection, TRAFFIC), dict[str, int]()
        for row in connection.execute(select(policies.c["label", "retired_at"])).all():
            ledger = Ledger(self.database, label=row.label)
            newest = ledger.latest_snapshots(limit=1, connection=connection)
            last = min(newest[0].last_seq if newest else 0, ledger.last_seq(connection=connection) - 1)
            if row.retired_at is None:
                last = min(last, int(position_of(connection, rewards_reader(row.label)).get("seq", 0)))
            last_seqs[row.label] = last
        # The totals compare each hour that is over with its rows once more.
        counted = min(position.get("decisions", [-math.inf])[0], 3600.0 * position.get("checked", 0))
        ended = position.get("outcomes", [-math.inf])[0]
        return _Bounds(made_before=counted, ended_before=ended, last_seqs=last_seqs)

    def _excess(self, connection: Connection) -> int:
        """How many decisions have to leave until the store is as small as it may be."""
        if self._gb is None:
            return 0
        stored = kept(connection, label=ALL)["decided"] - gone(connection, label=ALL)["decided"]
        return math.ceil(stored * (1.0 - 1e9 * self._gb / max(1.0, size_of(connection))))


def size_of(connection: Connection) -> float:
    """Bytes of the pages that have rows or entries of indexes; on PostgreSQL as a sample of them tells."""
    return float(connection.execute(text(_SIZE[connection.dialect.name])).scalar() or 0)


#: (made_at, id) of a decision
Place = tuple[float, str]


def _leave(
    connection: Connection, after: Place, until: float, *, bounds: _Bounds, limit: int, moves: Moves
) -> tuple[list[Place], int]:
    """Delete what may leave among the next `limit` decisions: their places, and how many left."""
    seen = [(float(row.made_at), str(row.id)) for row in connection.execute(next_ones(after, until, limit=limit))]
    looked_at = [key for _, key in seen]
    ids = sorted(set(looked_at).difference(connection.execute(_needed(looked_at, bounds=bounds)).scalars()))
    if not ids:
        return seen, 0
    left = Moves(GONE)
    left.add("decided", len(ids))
    late = _deleted(connection, feedback, feedback.c.decision_id.in_(ids), "late")
    left.add("feedback", len(late))
    left.add("late_feedback", sum(row["late"] for row in late))
    of_ledgers = updates.c.policy.in_(bounds.last_seqs), updates.c.decision_id.in_(ids)
    left.updates(_deleted(connection, updates, and_(*of_ledgers), "policy", "source", "disagreement"))
    of_ledgers = closures.c.policy.in_(bounds.last_seqs), closures.c.decision_id.in_(ids)
    left.closures(_deleted(connection, closures, and_(*of_ledgers), "policy", "state"))
    for kind in get_args(JobKind):
        drop_jobs(connection, ids, kind=kind, moves=moves)
    for table in (outcomes, cancellations):
        connection.execute(delete(table).where(table.c.decision_id.in_(ids)))
    connection.execute(delete(decisions).where(decisions.c.id.in_(ids)))
    left.write(connection, shard=0)
    return seen, len(ids)


def next_ones(after: Place, until: float, *, limit: int) -> Select[Any]:
    """The oldest decisions after a place, except those that are locked; none while a ledger inherits decisions."""
    place = decisions.c.made_at, decisions.c.id
    # The first bound is for the index, which has no ids.
    query = select(*place).where(place[0] >= after[0], place[0] < until, tuple_(*place) > tuple_(*after))
    query = query.where(~exists().where(policies.c.inheriting.is_not(None)))
    return query.order_by(*place).limit(limit).with_for_update(skip_locked=True)


def _needed(ids: Sequence[str], *, bounds: _Bounds) -> CompoundSelect[Any]:
    """The ids of those decisions whose rows are needed still."""
    new = [and_(updates.c.policy == label, updates.c.seq > seq) for label, seq in bounds.last_seqs.items()]
    return union_all(
        *(select(table.c.decision_id).where(table.c.decision_id.in_(ids)) for table in (waiting, answer_queue)),
        select(outcomes.c.decision_id).where(
            outcomes.c.decision_id.in_(ids), outcomes.c.made_at >= bounds.ended_before
        ),
        select(updates.c.decision_id).where(updates.c.decision_id.in_(ids), or_(false(), *new)),
    )


def _deleted(connection: Connection, table: Table, which: ColumnElement[bool], *names: str) -> Sequence[RowMapping]:
    """Delete rows; these columns of them."""
    return connection.execute(delete(table).where(which).returning(*table.c[names])).mappings().all()
