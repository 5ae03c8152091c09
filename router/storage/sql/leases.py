"""Leases for work that only one process at a time may do.

If the holder has ended, another process on the same host learns it from the kernel, and takes the lease at once.

Times come from the database's clock. Otherwise a holder whose own clock is an hour ahead would block others for an hour
after its death. SQLite only has the host's clock, which may have been set back. So a SQLite lease that would end later
than a lease taken now counts as expired, unless the holder is known to run on this host.
"""

import uuid
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Double, literal_column, or_, select

from ragbandit.router.storage.sql.bulk_insert import insert_into
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.store_clock import CLOCK
from ragbandit.router.storage.sql.tables import leases
from ragbandit.shared.processes.this_process import ProcessIdentity, this_process


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
        held = self.last_holder()
        if held is None:
            return False
        is_alive = is_holder_alive(held.holder)
        ends_too_late = self.database.is_sqlite and held.left_s > lease_s
        if is_alive or (is_alive is None and not ends_too_late):
            return False
        self.release(holder=held.holder)
        return self._take(holder=holder, lease_s=lease_s)

    def last_holder(self) -> "HeldLease | None":
        """The last holder, even if the lease has expired; None if no process has taken it or the holder released it."""
        return next(iter(held_leases(self.database, leases.c.name == self.name)), None)

    def _take(self, *, holder: str, lease_s: float) -> bool:
        now = database_time(self.database)
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
        query = query.where(leases.c.expires_at > database_time(self.database))
        return connection.execute(query.with_for_update()).first() is not None


def delete_expired(database: Database, *, prefix: str, expired_s: float) -> None:
    """Delete leases whose names begin with `prefix` and that expired at least `expired_s` seconds ago."""
    old = leases.c.expires_at < database_time(database) - expired_s
    with database.write() as connection:
        connection.execute(leases.delete().where(leases.c.name.startswith(prefix, autoescape=True), old))


def database_time(database: Database) -> ColumnElement[float]:
    """The SQL expression for the present time of the database, seconds since 1970."""
    return literal_column(f"({CLOCK[database.engine.dialect.name]})", Double)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldLease:
    name: str
    holder: str
    #: seconds until the lease expires, by the database's clock; negative if it has expired
    left_s: float


def held_leases(database: Database, *where: ColumnElement[bool]) -> list[HeldLease]:
    """The first 100 leases by name, expired ones included. where: conditions on `leases`."""
    left_s = (leases.c.expires_at - database_time(database)).label("left_s")
    query = select(leases.c.name, leases.c.holder, left_s).where(*where).order_by(leases.c.name).limit(100)
    with database.read() as connection:
        return [HeldLease(**row) for row in connection.execute(query).mappings()]


def is_holder_alive(key: str) -> bool | None:
    """Whether the process with this key runs; None if it is on another host, or the key belongs to no process."""
    process = ProcessIdentity.from_key(key)
    return None if process is None else process.is_alive()
