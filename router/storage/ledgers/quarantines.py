"""Sources of feedback: those that a ledger is learned without, raters beyond a day's cap, who was learned lately."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, func, insert, select, update

from ragbandit.router.storage.ledgers.ledger import Ledger
from ragbandit.router.storage.rows.conversion import TableRows
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import feedback, quarantines, updates
from ragbandit.shared.errors import NotFound
from ragbandit.shared.types import Feedback

DAY_S: Final = 86_400.0


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


@dataclass(frozen=True, slots=True)
class RaterDay:
    """One rater of one API key on one UTC day."""

    api_key: str | None
    rater: str
    #: days since the epoch
    day: int

    @classmethod
    def of(cls, item: Feedback) -> "RaterDay":
        """Of a feedback that names its rater."""
        assert item.rater is not None
        return cls(item.api_key, item.rater, int(item.received_at // DAY_S))


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


def first_beyond(database: Database, days: Collection[RaterDay], *, cap: int) -> dict[RaterDay, tuple[float, str]]:
    """(received_at, id) of the first feedback beyond the cap, for the raters and days that have more; UTC days."""
    beyond = {}
    with database.read() as connection:
        for number in sorted({one.day for one in days}):
            raters = {one.rater for one in days if one.day == number}
            here = feedback.c.received_at >= number * DAY_S, feedback.c.received_at < (number + 1) * DAY_S
            names = feedback.c.rater, feedback.c.api_key
            many = select(*names).where(feedback.c.rater.in_(raters), *here).group_by(*names)
            for rater, api_key in connection.execute(many.having(func.count() > cap)).all():
                theirs = feedback.c.rater == rater, feedback.c.api_key.is_not_distinct_from(api_key)
                query = select(feedback.c.received_at, feedback.c.id).where(*theirs, *here)
                ordered = query.order_by(feedback.c.received_at, feedback.c.id).offset(cap).limit(1)
                received_at, key = connection.execute(ordered).one()
                beyond[RaterDay(api_key, rater, number)] = (received_at, key)
    return beyond


def raters_lately(ledger: Ledger, *, decisions: int, among: int, limit: int) -> list[dict[str, Any]]:
    """Source, rater and API key of the feedback on the newest judged decisions, with how much each sent and when last.

    decisions: at most so many, among the newest updates of the ledger. limit: of those that sent most.
    """
    learned = select(updates.c.decision_id).where(
        updates.c.policy == ledger.label, updates.c.source == "explicit", updates.c.sample_weight > 0
    )
    who = feedback.c.source, feedback.c.rater, feedback.c.api_key
    sent = func.count().label("judgements")
    with ledger.database.read() as connection:
        learned = learned.where(updates.c.seq > ledger.last_seq(connection=connection) - among)
        newest = learned.order_by(updates.c.seq.desc()).limit(decisions).subquery()
        rows = select(*who, sent, func.max(feedback.c.received_at).label("newest_at")).where(
            feedback.c.decision_id.in_(select(newest.c.decision_id))
        )
        ordered = rows.group_by(*who).order_by(sent.desc(), *who).limit(limit)
        return [dict(row) for row in connection.execute(ordered).mappings()]
