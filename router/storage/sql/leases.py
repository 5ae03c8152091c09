"""Leases of tasks that only one process at a time may do, and claims of rows that wait to be processed.

If the holder has ended, another process on the same host notices it from the kernel, and takes the lease at once.

Times come from the database's clock: a holder whose own clock is an hour ahead would block others for an hour after its
death. SQLite only has the host's clock, which may have been set back. So a SQLite lease that would end later than a
lease taken now counts as expired, unless the holder is known to run on this host.
"""

import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Double, RowMapping, Table, exists, func, literal, or_, select, update

from ragbandit.router.storage.sql.bulk_insert import insert_into
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import leases
from ragbandit.shared.this_process import ProcessIdentity, this_process
from ragbandit.shared.types import DecisionId

#: Time after which a claim expires unless it is renewed, seconds. With a shorter time another host would more often
#: repeat, and pay for, the answer of a process that only stalled (docs/operations.md, Leases).
CLAIM_S: Final = 2.5


def lease_holder(work: str) -> str:
    """A new name for this process as holder of a lease, at most 128 characters. work: one word for the kind of work."""
    return f"{this_process().key}/{work}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    database: Database
    name: str

    def acquire(self, *, holder: str, lease_s: float) -> bool:
        """Take or renew the lease for `lease_s` seconds; False if another process, which may be alive, holds it."""
        if self._take(holder=holder, lease_s=lease_s):
            return True
        held = self.held()
        if held is None:
            return False
        is_alive = holder_alive(held.holder)
        ends_too_late = self.database.is_sqlite and held.left_s > lease_s
        if is_alive or (is_alive is None and not ends_too_late):
            return False
        self.release(holder=held.holder)
        return self._take(holder=holder, lease_s=lease_s)

    def held(self) -> "HeldLease | None":
        """The lease's holder and time left, even if it has expired; None if no process has taken it."""
        return next(iter(held_leases(self.database, leases.c.name == self.name)), None)

    def _take(self, *, holder: str, lease_s: float) -> bool:
        now = clock(self.database)
        is_free = or_(leases.c.holder == holder, leases.c.expires_at <= now)
        row: dict[str, Any] = {"holder": holder, "expires_at": now + lease_s}
        with self.database.write() as connection:
            insert = insert_into(connection, leases).values(name=self.name, **row)
            upsert = insert.on_conflict_do_update(index_elements=[leases.c.name], set_=row, where=is_free)
            return connection.execute(upsert.returning(leases.c.name)).first() is not None

    def release(self, *, holder: str) -> None:
        with self.database.write() as connection:
            connection.execute(leases.delete().where(leases.c.name == self.name, leases.c.holder == holder))

    def is_held(self, connection: Connection, *, holder: str) -> bool:
        """Whether `holder` holds the lease. If so, no other process can take it before this transaction ends."""
        query = select(leases.c.name).where(leases.c.name == self.name, leases.c.holder == holder)
        query = query.where(leases.c.expires_at > clock(self.database))
        return connection.execute(query.with_for_update()).first() is not None


def forget(database: Database, *, prefix: str, expired_s: float) -> None:
    """Delete leases whose names begin with `prefix` and that expired at least `expired_s` seconds ago."""
    old = leases.c.expires_at < clock(database) - expired_s
    with database.write() as connection:
        connection.execute(leases.delete().where(leases.c.name.startswith(prefix, autoescape=True), old))


def clock(database: Database) -> ColumnElement[float]:
    """Seconds since 1970 by the database's clock, at the time of the statement."""
    if database.is_sqlite:
        julian_1970 = literal(2440587.5)
        return (func.julianday("now", type_=Double) - julian_1970) * 86400.0
    return func.extract("epoch", func.clock_timestamp()).cast(Double)


def now_of(connection: Connection) -> float:
    """Seconds since 1970 by the database's clock, which for SQLite is the clock of this host."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(connection.execute(select(func.extract("epoch", func.clock_timestamp()).cast(Double))).scalar_one())


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldLease:
    name: str
    holder: str
    #: seconds until the lease expires, by the database's clock; negative if it has expired
    left_s: float


def held_leases(database: Database, *where: ColumnElement[bool]) -> list[HeldLease]:
    """The first 100 leases by name, expired ones included. where: conditions on `leases`."""
    left_s = (leases.c.expires_at - clock(database)).label("left_s")
    query = select(leases.c.name, leases.c.holder, left_s).where(*where).order_by(leases.c.name).limit(100)
    with database.read() as connection:
        return [HeldLease(**row) for row in connection.execute(query).mappings()]


class Claims:
    """A queue of decisions: each row of the table is claimed by one process at a time. Every method raises StoreError.

    A process renews its claims while it runs. After its end, other processes remove its claims: processes on the same
    host at once, processes on other hosts when the claims have expired.

    table: has the columns decision_id, tries, claimed_by and claimed_until. process: None for this process.
    """

    def __init__(
        self,
        database: Database,
        table: Table,
        *where: ColumnElement[bool],
        order: Sequence[ColumnElement[Any]],
        process: ProcessIdentity | None = None,
    ) -> None:
        self._database, self._table = database, table
        self._where, self._order = where, order
        self.process = process or this_process()

    def wait(self, *where: ColumnElement[bool]) -> bool:
        """Whether a row can be claimed. Call it before `take`, which needs a write transaction."""
        with self._database.read() as connection:
            return bool(connection.execute(select(exists().where(*self._free_rows(*where)))).scalar())

    def take(self, connection: Connection, *where: ColumnElement[bool]) -> RowMapping | None:
        """Claim the next row and count a try; None if no row is free."""
        table = self._table
        first = select(table.c.decision_id).where(*self._free_rows(*where)).order_by(*self._order).limit(1)
        chosen = first.with_for_update(skip_locked=True).scalar_subquery()
        claim = {"claimed_by": self.process.key, "claimed_until": clock(self._database) + CLAIM_S}
        claimed = update(table).where(table.c.decision_id == chosen, *self._where)
        return connection.execute(claimed.values(**claim, tries=table.c.tries + 1).returning(table)).mappings().first()

    def _free_rows(self, *where: ColumnElement[bool]) -> tuple[ColumnElement[bool], ...]:
        return (self._table.c.claimed_by.is_(None), *self._where, *where)

    def renew(self, ids: Sequence[DecisionId]) -> None:
        """Renew the claims of decisions that this process works on; call it much more often than every CLAIM_S."""
        if ids:
            self._set(ids, claimed_until=clock(self._database) + CLAIM_S)

    def give_back(self, decision_id: DecisionId) -> None:
        """Let another process claim the decision. The decision keeps its turn, and this try does not count."""
        self._set([decision_id], claimed_by=None, claimed_until=None, tries=self._table.c.tries - 1)

    def free_lost(self, *, held: Collection[DecisionId]) -> list[DecisionId]:
        """Remove claims of ended processes, and expired ones of this process except `held`. Returns their decisions."""
        table = self._table
        is_expired = table.c.claimed_until <= clock(self._database)
        query = select(table.c.claimed_by, func.min(table.c.claimed_until) <= clock(self._database))
        query = query.where(table.c.claimed_by.is_not(None), *self._where).group_by(table.c.claimed_by)
        with self._database.read() as connection:
            holders = connection.execute(query).all()
        freed: list[DecisionId] = []
        for holder, some_expired in holders:
            is_alive = holder_alive(holder)
            if is_alive is False:
                freed += self._free(table.c.claimed_by == holder)
            elif some_expired and holder == self.process.key:
                freed += self._free(table.c.claimed_by == holder, is_expired, table.c.decision_id.not_in(held))
            elif some_expired and is_alive is None:
                freed += self._free(table.c.claimed_by == holder, is_expired)
        return freed

    def _free(self, *where: ColumnElement[bool]) -> list[DecisionId]:
        """Remove claims of rows that no other transaction has locked."""
        table = self._table
        chosen = select(table.c.decision_id).where(*where, *self._where).with_for_update(skip_locked=True)
        freed = update(table).where(table.c.decision_id.in_(chosen), *self._where)
        freed = freed.values(claimed_by=None, claimed_until=None)
        with self._database.write() as connection:
            return list(connection.execute(freed.returning(table.c.decision_id)).scalars())

    def _set(self, ids: Sequence[DecisionId], **values: Any) -> None:
        is_claimed = self._table.c.claimed_by == self.process.key, self._table.c.decision_id.in_(ids)
        with self._database.write() as connection:
            connection.execute(update(self._table).where(*is_claimed, *self._where).values(**values))


def holder_alive(key: str) -> bool | None:
    """Whether the process with this key runs; None if it is on another host, or the key belongs to no process."""
    process = ProcessIdentity.from_key(key)
    return None if process is None else process.is_alive()
