"""Leases: a row in the database says which process may do what only one may do at a time, and until when; and claims of
rows that wait to be worked on.

A holder that was killed keeps nobody waiting on its own host, where the kernel knows that it has ended.

The time is the database's. The clock of the host that holds a lease is never asked: one that is an hour ahead would
keep everybody else out for an hour after its death. SQLite has no clock but the host's, which may have been ahead. So
on SQLite a lease that ends later than one taken now counts as expired, unless its holder is seen to run on this host:
it may only have asked for a longer lease.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    RowMapping,
    Table,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    update,
)

from ragbandit.router.storage.sql.bulk_insert import insert_into
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import leases
from ragbandit.shared.child_process import ProcessIdentity, this_process
from ragbandit.shared.types import DecisionId

#: 1970-01-01 as SQLite counts days
_EPOCH_DAY = 2440587.5
#: a claim of a row that was not renewed for that long has run out, seconds. A shorter time lets another host repeat,
#: and pay for, the answer of a process that only stalled (docs/operations.md, Leases)
CLAIM_S: Final = 2.5
#: leases that are listed
_LISTED: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """The lease of this name."""

    database: Database
    name: str

    def acquire(self, *, holder: str, lease_s: float) -> bool:
        """Take or renew the lease for `lease_s` seconds; False if another process that may live holds it."""
        if self._taken(holder=holder, lease_s=lease_s):
            return True
        held = self.held()
        lives = None if held is None else _lives(held.holder)
        if held is None or lives:
            return False
        if lives is None and not (self.database.is_sqlite and held.left_s > lease_s):
            return False
        self.release(holder=held.holder)
        return self._taken(holder=holder, lease_s=lease_s)

    def held(self) -> "HeldLease | None":
        """The holder and the time that is left; None if nobody has taken it."""
        return next(iter(held_leases(self.database, leases.c.name == self.name)), None)

    def _taken(self, *, holder: str, lease_s: float) -> bool:
        now = clock(self.database)
        free = [leases.c.holder == holder, leases.c.expires_at <= now]
        row: dict[str, Any] = {"holder": holder, "expires_at": now + lease_s}
        with self.database.write() as connection:
            insert = insert_into(connection, leases).values(name=self.name, **row)
            taken = insert.on_conflict_do_update(index_elements=[leases.c.name], set_=row, where=or_(*free))
            return connection.execute(taken.returning(leases.c.name)).first() is not None

    def release(self, *, holder: str) -> None:
        """Give the lease back, if it is ours."""
        with self.database.write() as connection:
            connection.execute(delete(leases).where(leases.c.name == self.name, leases.c.holder == holder))

    def is_held(self, connection: Connection, *, holder: str) -> bool:
        """Whether it is ours until this transaction ends: nobody else can take it meanwhile."""
        query = select(leases.c.name).where(leases.c.name == self.name, leases.c.holder == holder)
        query = query.where(leases.c.expires_at > clock(self.database))
        return connection.execute(query.with_for_update()).first() is not None


def forget(database: Database, *, prefix: str, expired_s: float) -> None:
    """Delete the leases whose names begin so and that ran out that many seconds ago."""
    old = leases.c.expires_at < clock(database) - expired_s
    with database.write() as connection:
        connection.execute(delete(leases).where(leases.c.name.startswith(prefix, autoescape=True), old))


def clock(database: Database) -> ColumnElement[float]:
    """Seconds since 1970 by the database; on PostgreSQL of this moment, not of the transaction's beginning."""
    if database.is_sqlite:
        return (func.julianday("now", type_=Double) - literal(_EPOCH_DAY)) * 86400.0
    return func.extract("epoch", func.clock_timestamp()).cast(Double)


def now_of(connection: Connection) -> float:
    """The time of the database, seconds since 1970; SQLite has the clock of this host."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()).cast(Double))).scalar_one())


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldLease:
    """Who may do what only one may do at a time, and until when."""

    name: str
    holder: str
    #: seconds for which it is held from now on, by the database's clock; below zero: it ran out
    left_s: float


def held_leases(database: Database, *where: ColumnElement[bool]) -> list[HeldLease]:
    """The leases that are held, and those that ran out and were not taken since, by name; _LISTED at most."""
    left = (leases.c.expires_at - clock(database)).label("left_s")
    query = select(leases.c.name, leases.c.holder, left).where(*where).order_by(leases.c.name).limit(_LISTED)
    with database.read() as connection:
        return [HeldLease(**row) for row in connection.execute(query).mappings()]


class Claims:
    """Decisions in rows of a table, of which one process at a time works on each. Every method raises StoreError.

    A process renews its claims while it lives. The claim of a process that has ended is taken away: at once on its own
    host, where the kernel knows, elsewhere when it has run out.

    table: with the columns decision_id, tries, claimed_by and claimed_until. where: the rows that are meant. order:
    which is next. process: in whose name decisions are claimed; None: this one's.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        *where: ColumnElement[bool],
        order: Sequence[ColumnElement[Any]],
        process: ProcessIdentity | None = None,
    ) -> None:
        self._database, self._table, self._where, self._order = database, table, where, order
        self.process = process or this_process()

    def wait(self, *where: ColumnElement[bool]) -> bool:
        """Whether one of these rows may be claimed: most looks find none, and need no write."""
        with self._database.read() as connection:
            return bool(connection.execute(select(exists().where(*self._free_rows(*where)))).scalar())

    def take(self, connection: Connection, *where: ColumnElement[bool]) -> RowMapping | None:
        """Claim the next of these rows, with one more try counted; None if none waits."""
        table = self._table
        first = select(table.c.decision_id).where(*self._free_rows(*where)).order_by(*self._order).limit(1)
        chosen = first.with_for_update(skip_locked=True).scalar_subquery()
        claim = {"claimed_by": self.process.key, "claimed_until": clock(self._database) + CLAIM_S}
        claimed = update(table).where(table.c.decision_id == chosen, *self._where)
        return connection.execute(claimed.values(**claim, tries=table.c.tries + 1).returning(table)).mappings().first()

    def _free_rows(self, *where: ColumnElement[bool]) -> list[ColumnElement[bool]]:
        return [self._table.c.claimed_by.is_(None), *self._where, *where]

    def renew(self, ids: Sequence[DecisionId]) -> None:
        """This process lives, and has these in hand: to be repeated well within CLAIM_S."""
        if ids:
            self._set(ids, claimed_until=clock(self._database) + CLAIM_S)

    def give_back(self, decision_id: DecisionId) -> None:
        """Let another process claim the decision; its turn stays, and this try does not count."""
        self._set([decision_id], claimed_by=None, claimed_until=None, tries=self._table.c.tries - 1)

    def free_lost(self, *, held: Collection[DecisionId]) -> list[DecisionId]:
        """Let decisions be claimed again whose process has ended; they keep their turn. Returns them.

        held: what this process has in hand; its other claims are lost when they have run out.
        """
        table, over = self._table, self._table.c.claimed_until <= clock(self._database)
        holders = select(table.c.claimed_by, func.min(table.c.claimed_until) <= clock(self._database))
        holders = holders.where(table.c.claimed_by.is_not(None), *self._where).group_by(table.c.claimed_by)
        with self._database.read() as connection:
            known = connection.execute(holders).all()
        lost: list[DecisionId] = []
        for holder, some_over in known:
            lives = _lives(holder)
            if lives is False:
                lost += self._free(table.c.claimed_by == holder)
            elif some_over and holder == self.process.key:
                lost += self._free(table.c.claimed_by == holder, over, table.c.decision_id.not_in(held))
            elif some_over and lives is None:
                lost += self._free(table.c.claimed_by == holder, over)
        return lost

    def _free(self, *where: ColumnElement[bool]) -> list[DecisionId]:
        """Take these claims away, unless another transaction has them."""
        table = self._table
        chosen = select(table.c.decision_id).where(*where, *self._where).with_for_update(skip_locked=True)
        freed = update(table).where(table.c.decision_id.in_(chosen), *self._where)
        freed = freed.values(claimed_by=None, claimed_until=None)
        with self._database.write() as connection:
            return list(connection.execute(freed.returning(table.c.decision_id)).scalars())

    def _set(self, ids: Sequence[DecisionId], **values: Any) -> None:
        mine = self._table.c.claimed_by == self.process.key, self._table.c.decision_id.in_(ids)
        with self._database.write() as connection:
            connection.execute(update(self._table).where(*mine, *self._where).values(**values))


def _lives(key: str) -> bool | None:
    """Whether the holder's process runs; None if it is on another host, or the key names no process."""
    process = ProcessIdentity.from_key(key)
    return None if process is None else process.is_alive()
