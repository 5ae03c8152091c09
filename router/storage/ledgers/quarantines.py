"""Quarantines: sources of feedback that a ledger is learned without."""

from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy import Connection, func, insert, select, update

from ragbandit.router.storage.rows.conversion import TableRows
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import quarantines
from ragbandit.shared.errors import NotFound


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantine:
    """A source whose feedback of a time is left out of a ledger."""

    #: 1, 2, 3 ...
    number: int
    #: "key:PUBLIC_ID", "tenant:NAME", "role:NAME" or "rater:NAME"
    source: str
    #: of when the feedback came in, seconds since the epoch; None: no bound
    since: float | None
    until: float | None
    #: the ledger that had learned from it, and the one that is learned without
    label: str
    new_label: str
    reason: str
    actor: str
    made_at: float
    #: None: it is in force
    lifted_at: float | None

    def covers(self, received_at: float) -> bool:
        """Whether it is about feedback that came in then."""
        return (self.since is None or received_at >= self.since) and (self.until is None or received_at < self.until)


_ROWS: Final = TableRows(quarantines, Quarantine)


def quarantines_of(database: Database, *, new_label: str | None = None, lifted: bool = False) -> list[Quarantine]:
    """Quarantines in force, the oldest first. new_label: of one ledger; lifted: those that were lifted too."""
    with database.read() as connection:
        return in_force(connection, new_label=new_label, lifted=lifted)


def in_force(connection: Connection, *, new_label: str | None = None, lifted: bool = False) -> list[Quarantine]:
    """`quarantines_of` in a transaction of the caller's."""
    query = select(quarantines).order_by(quarantines.c.number)
    if new_label is not None:
        query = query.where(quarantines.c.new_label == new_label)
    if not lifted:
        query = query.where(quarantines.c.lifted_at.is_(None))
    return [_ROWS.value(row) for row in connection.execute(query).mappings()]


def add_quarantine(connection: Connection, quarantine: Quarantine) -> Quarantine:
    """Store it under the next number, in the caller's write transaction."""
    last = connection.execute(select(func.coalesce(func.max(quarantines.c.number), 0))).scalar_one()
    numbered = replace(quarantine, number=int(last) + 1, actor=quarantine.actor[:128], lifted_at=None)
    connection.execute(insert(quarantines).values(**_ROWS.row(numbered)))
    return numbered


def lift(connection: Connection, number: int, *, now: float) -> Quarantine:
    """End a quarantine, in the caller's write transaction. Raises NotFound."""
    row = connection.execute(select(quarantines).where(quarantines.c.number == number)).mappings().first()
    if row is None or row["lifted_at"] is not None:
        remedy = "`ragbandit feedback exclude` shows those in force"
        raise NotFound(f"no quarantine {number} is in force", field="number", remedy=remedy)
    connection.execute(update(quarantines).where(quarantines.c.number == number).values(lifted_at=now))
    return _ROWS.value(row)
