"""Leases: a row in the database says which process may do what only one may do at a time, and until when."""

from dataclasses import dataclass

from sqlalchemy import Connection, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from ragbandit.router.storage.database import Database
from ragbandit.router.storage.tables import leases

__all__ = ["Lease"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """The lease of this name."""

    database: Database
    name: str

    def acquire(self, *, holder: str, now: float, lease_s: float) -> bool:
        """Take or prolong the lease; False if somebody else holds it."""
        with self.database.write() as connection:
            dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
            row = {"name": self.name, "holder": holder, "expires_at": now + lease_s}
            statement = dialect.insert(leases).values(row)
            statement = statement.on_conflict_do_update(
                index_elements=[leases.c.name],
                set_={"holder": holder, "expires_at": now + lease_s},
                where=or_(leases.c.holder == holder, leases.c.expires_at <= now),
            )
            return bool(connection.execute(statement.returning(leases.c.name)).first())

    def release(self, *, holder: str) -> None:
        """Give the lease back, if it is ours."""
        with self.database.write() as connection:
            connection.execute(delete(leases).where(leases.c.name == self.name, leases.c.holder == holder))

    def is_held(self, connection: Connection, *, holder: str, now: float) -> bool:
        """Whether it is ours until this transaction ends: nobody else can take it meanwhile."""
        query = select(leases.c.holder, leases.c.expires_at).where(leases.c.name == self.name)
        row = connection.execute(query.with_for_update()).first()
        return row is not None and row.holder == holder and row.expires_at > now
