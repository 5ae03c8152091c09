"""Retention: the oldest decisions leave the store, by age or because it is too large, while traffic goes on.

A decision leaves with its outcome, feedback, updates and closures if no ledger waits for it, the hourly totals include
it, and a snapshot after it exists of every policy that learned it. The newest update of a ledger stays. The counters
count what left (`counters.GONE`), so counts of all time stay exact, and `verify` checks that nothing else is missing.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, get_args

from sqlalchemy import Connection, RowMapping, Table, and_, delete, exists, false, or_, select, text, tuple_, union_all

from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.outcome_rows import JobKind, drop_jobs
from ragbandit.router.storage.sql import tables
from ragbandit.router.storage.sql.counters import ALL, GONE, Moves, counting, gone, kept
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.leases import Lease
from ragbandit.router.storage.sql.tables import decisions, outcomes, policies, updates
from ragbandit.router.storage.totals import TRAFFIC, position_of, rewards_reader

#: what one transaction should take, seconds: on SQLite other writers wait for it
AIM_S: Final = 0.02
#: decisions that one transaction looks at
FEWEST, MOST = 32, 500
#: how long a step goes on, and how long its lease lasts, seconds
STEP_S, LEASE_S = 2.0, 60.0
#: Bytes in use. PostgreSQL keeps the pages of deleted rows: the share of its pages without a row of `decisions` is
#: estimated from 2,000 of them, and subtracted from all tables.
_SIZE: Final = {
    "sqlite": "SELECT (page_count - freelist_count) * page_size"
    " FROM pragma_page_count, pragma_freelist_count, pragma_page_size",
    "postgresql": "WITH whole AS (SELECT"
    " greatest(1, pg_relation_size('decisions') / current_setting('block_size')::int)"
    " AS pages) SELECT (SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables"
    " WHERE schemaname = current_schema()) * least(1, (SELECT count(DISTINCT (ctid::text::point)[0])"
    " / least(2000.0, pages) FROM decisions"
    " TABLESAMPLE SYSTEM ((SELECT least(100, 200000.0 / pages) FROM whole)))) FROM whole",
}


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
        self._days, self._gb = math.inf if days is None else days, math.inf if gb is None else gb
        self._lease = Lease(database=database, name="retention")
        self._batch = FEWEST
        #: (made_at, id) of the last decision that was looked at
        self._after = (-math.inf, "")
        #: what may leave: decisions made before, with outcomes stored before, and label -> the last seq
        self._made_before, self._ended_before, self._last_seqs = -math.inf, -math.inf, dict[str, int]()

    def step(self) -> float | None:
        """Let decisions leave for STEP_S; 0 if more may be due, None if not or if another process does it."""
        if not self._lease.acquire(holder=self.holder, lease_s=LEASE_S):
            return None
        with self.database.read() as connection:
            excess = self.look(connection)
        old, give_up = self.clock() - 86_400 * self._days, time.monotonic() + STEP_S
        while time.monotonic() < give_up:
            until = self._made_before if excess > 0 else min(old, self._made_before)
            with counting(self.database, foreign_keys=False) as (connection, moves):
                began = time.monotonic()
                seen, left = self.leave(connection, until, limit=self._batch, moves=moves)
            took = time.monotonic() - began
            self._after, excess = seen or (-math.inf, ""), excess - left
            if seen is None:
                return None
            self._batch = int(min(MOST, max(FEWEST, self._batch * min(1.25, max(0.5, AIM_S / took)))))
            time.sleep(max(took, 0.005))  # for other writers
        return 0.0

    def release(self) -> None:
        """Let another process go on."""
        self._lease.release(holder=self.holder)

    def look(self, connection: Connection) -> float:
        """Find out what may leave; how many decisions have to, for the store to be as small as it may be."""
        position = position_of(connection, TRAFFIC)
        for row in connection.execute(select(*policies.c["label", "retired_at"])).all():
            ledger = Ledger(self.database, label=row.label)
            ends = [one.last_seq for one in ledger.latest_snapshots(limit=1, connection=connection)] or [0]
            if row.retired_at is None:
                ends.append(int(position_of(connection, rewards_reader(row.label)).get("seq", 0)))
            self._last_seqs[row.label] = min(*ends, ledger.last_seq(connection=connection) - 1)
        # The totals compare each hour that is over with its rows once more.
        self._made_before = min(position.get("decisions", [-math.inf])[0], 3600.0 * position.get("checked", 0))
        self._ended_before = position.get("outcomes", [-math.inf])[0]
        stored = kept(connection, label=ALL)["decided"] - gone(connection, label=ALL)["decided"]
        return stored * (1.0 - 1e9 * self._gb / max(1.0, size_of(connection))) if self._gb < math.inf else 0.0

    def leave(
        self, connection: Connection, until: float, *, limit: int, moves: Moves
    ) -> tuple[tuple[float, str] | None, int]:
        """Delete what may leave of the next `limit` decisions; the last of these, if there is one, and how many left.

        Those that another transaction has locked are passed over. While a ledger inherits decisions, none leaves.
        """
        place = decisions.c.made_at, decisions.c.id
        # The first bound is for the index, which has no ids.
        here = place[0] >= self._after[0], place[0] < until, tuple_(*place) > tuple_(*self._after)
        query = select(*place).where(*here, ~exists().where(policies.c.inheriting.is_not(None)))
        seen = connection.execute(query.order_by(*place).limit(limit).with_for_update(skip_locked=True)).all()
        ids = self._not_needed(connection, [row.id for row in seen])
        last = (seen[-1].made_at, seen[-1].id) if seen else None
        if not ids:
            return last, 0
        left = Moves(GONE)
        left.add("decided", len(ids))
        late = _deleted(connection, tables.feedback, "late", ids=ids)
        left.add("feedback", len(late))
        left.add("late_feedback", sum(row["late"] for row in late))
        left.updates(_deleted(connection, updates, "policy", "source", "disagreement", ids=ids, of=self._last_seqs))
        left.closures(_deleted(connection, tables.closures, "policy", "state", ids=ids, of=self._last_seqs))
        for kind in get_args(JobKind):
            drop_jobs(connection, ids, kind=kind, moves=moves)
        for table in (outcomes, tables.cancellations):
            _deleted(connection, table, "decision_id", ids=ids)
        connection.execute(delete(decisions).where(decisions.c.id.in_(ids)))
        left.write(connection, shard=0)
        return last, len(ids)

    def _not_needed(self, connection: Connection, ids: Sequence[str]) -> list[str]:
        """Those of these decisions whose rows are no longer needed."""
        new = [and_(updates.c.policy == label, updates.c.seq > seq) for label, seq in self._last_seqs.items()]
        needed = {
            tables.waiting: (),
            tables.answer_queue: (),
            outcomes: (outcomes.c.made_at >= self._ended_before,),
            updates: (or_(false(), *new),),
        }
        of = [select(one.c.decision_id).where(one.c.decision_id.in_(ids), *where) for one, where in needed.items()]
        return sorted(set(ids).difference(connection.execute(union_all(*of)).scalars()))


def _deleted(
    connection: Connection, table: Table, *names: str, ids: Sequence[str], of: Any = None
) -> Sequence[RowMapping]:
    """Delete the rows about these decisions; these columns of them. of: labels, if the table's key begins with one."""
    rows = delete(table).where(table.c.decision_id.in_(ids))
    rows = rows if of is None else rows.where(table.c.policy.in_(of))
    return connection.execute(rows.returning(*table.c[names])).mappings().all()


def size_of(connection: Connection) -> float:
    """Bytes of the store in use."""
    return float(connection.execute(text(_SIZE[connection.dialect.name])).scalar() or 0)
