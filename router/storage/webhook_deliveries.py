"""Deliveries of webhooks: what is to be sent, and what became of it.

A row is an event for one webhook, under an id that follows from both: whoever notices the event makes the same row. A
delivery is claimed before it is sent, by moving `due_at`; the claim ends by itself, so a process that was killed leaves
nothing behind but an attempt. It is sent again then, under the same id: at least once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final, Literal, get_args

from sqlalchemy import Connection, case, delete, func, select, update

from ragbandit.router.storage.rows.conversion import canonical
from ragbandit.router.storage.rows.mapping import TableRows
from ragbandit.router.storage.sql.bulk_insert import insert_new
from ragbandit.router.storage.sql.counters import moving
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import counters, webhook_deliveries

#: rows that wait for one webhook; further events are not sent to it
MOST_WAITING: Final = 1000
#: rows in all, and seconds for which those that are over are kept: longer than a month, whose budget is told of once
MOST_STORED: Final = 100_000
KEPT_S: Final = 40 * 86_400.0
#: ids that one statement looks for
_BATCH: Final = 500
_MAX_ERROR: Final = 500
_COUNTED: Final = "webhook:"

#: delivered; tried in vain; tried in vain for the last time; never stored, since too many wait
WebhookResult = Literal["delivered", "failed", "given_up", "refused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """One event for one webhook."""

    id: str
    webhook: str
    event: str
    #: JSON object, as it is sent
    body: str
    made_at: float
    #: when it is due; None: it is over
    due_at: float | None
    #: tries so far; of a claimed one with the present try
    attempts: int = 0
    delivered_at: float | None = None
    #: of the last try that failed
    error: str | None = None


_ROWS: Final = TableRows(webhook_deliveries, Delivery)
_columns: Final = webhook_deliveries.c
_OVER: Final = _columns.due_at.is_(None)


def delivery_id(event: str, *, key: str, webhook: str) -> str:
    """The id of an event at a webhook. key: the same for everybody who notices the event."""
    named = blake2b(canonical([webhook, event, key]).encode(), digest_size=16)
    return f"{event}_{named.hexdigest()}"


class WebhookDeliveries:
    """The rows of one database. Times are seconds since 1970; every call raises StoreError."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, deliveries: Sequence[Delivery], *, now: float) -> tuple[int, int]:
        """Store those that are new; how many were, and how many had no room."""
        with self.database.read() as connection:  # mostly none is, and nothing is written
            ids = [one.id for one in deliveries]
            parts = (ids[begin : begin + _BATCH] for begin in range(0, len(ids), _BATCH))
            queries = (select(_columns.id).where(_columns.id.in_(part)) for part in parts)
            known = {key for query in queries for key in connection.execute(query).scalars()}
        new = [one for one in deliveries if one.id not in known]
        if not new:
            return 0, 0
        with self.database.write() as connection, moving(connection, shard=self.database.shard) as moves:
            _prune(connection, now=now)
            taken = []
            for name in dict.fromkeys(one.webhook for one in new):
                ours = [_ROWS.row(one) for one in new if one.webhook == name]
                room = max(0, MOST_WAITING - _waiting(connection, name))
                taken += ours[:room]
                moves.tally(_COUNTED + name, name="refused", amount=len(ours[room:]))
            return len(insert_new(connection, webhook_deliveries, taken, key="id")), len(new) - len(taken)

    def claim(self, webhook: str, *, now: float, for_s: float, limit: int) -> list[Delivery]:
        """Deliveries that are due, for this process alone for so many seconds, the longest due first."""
        due = select(webhook_deliveries).where(_columns.webhook == webhook, _columns.due_at <= now)
        due = due.order_by(_columns.due_at, _columns.id).limit(limit)
        with self.database.read() as connection:  # mostly there is nothing, and nothing is written
            if connection.execute(due).first() is None:
                return []
        with self.database.write() as connection:
            rows = connection.execute(due.with_for_update(skip_locked=True)).mappings()
            claimed = [_ROWS.value(row) for row in rows]
            ours = _columns.id.in_([one.id for one in claimed])
            connection.execute(
                update(webhook_deliveries).where(ours).values(due_at=now + for_s, attempts=_columns.attempts + 1)
            )
        return [replace(one, attempts=one.attempts + 1) for one in claimed]

    def settle(self, claimed: Delivery, *, error: str | None, due_at: float | None, now: float) -> None:
        """Note what became of a try. error: None, it is delivered. due_at: of the next try; None: there is none."""
        if error is None:
            values: dict[str, Any] = {"due_at": None, "delivered_at": now}
        else:
            values = {"due_at": due_at, "error": error[:_MAX_ERROR]}
        result: WebhookResult = "delivered" if error is None else "failed" if due_at is not None else "given_up"
        # Not of a row whose claim ran out: whoever claimed it since says what becomes of it.
        mine = _columns.id == claimed.id, _columns.attempts == claimed.attempts, ~_OVER
        with self.database.write() as connection, moving(connection, shard=self.database.shard) as moves:
            connection.execute(update(webhook_deliveries).where(*mine).values(**values))
            moves.tally(_COUNTED + claimed.webhook, name=result, amount=1)

    def undelivered(self) -> dict[str, str]:
        """What waits and what was given up, in words, of each webhook that has such."""
        waiting = func.sum(case((_OVER, 0), else_=1))
        given_up = func.sum(case((_OVER & _columns.delivered_at.is_(None), 1), else_=0))
        query = select(_columns.webhook, waiting, given_up).where(_columns.delivered_at.is_(None))
        with self.database.read() as connection:
            rows = connection.execute(query.group_by(_columns.webhook).order_by(_columns.webhook)).all()
        return {name: f"{waits} waiting, {lost} given up" for name, waits, lost in rows}


def results_of(database: Database) -> Mapping[tuple[str, str], int]:
    """How often each webhook had each result, ever: (webhook, WebhookResult) -> count. Raises StoreError."""
    ours = counters.c.label >= _COUNTED, counters.c.label < _COUNTED[:-1] + ";"
    query = select(counters.c.label, counters.c.name, func.sum(counters.c.value)).where(*ours)
    with database.read() as connection:
        rows = connection.execute(query.group_by(counters.c.label, counters.c.name)).all()
    known = {(label.removeprefix(_COUNTED), name): int(value) for label, name, value in rows}
    webhooks = sorted({webhook for webhook, _ in known})
    return {(webhook, name): known.get((webhook, name), 0) for webhook in webhooks for name in get_args(WebhookResult)}


def _waiting(connection: Connection, webhook: str) -> int:
    query = select(func.count()).select_from(webhook_deliveries).where(_columns.webhook == webhook, ~_OVER)
    return int(connection.execute(query).scalar_one())


def _prune(connection: Connection, *, now: float) -> None:
    """Delete what has been over for long, and the oldest of that beyond MOST_STORED."""
    connection.execute(delete(webhook_deliveries).where(_OVER, _columns.made_at < now - KEPT_S))
    stored = connection.execute(select(func.count()).select_from(webhook_deliveries)).scalar_one()
    if stored > MOST_STORED:
        oldest = select(_columns.id).where(_OVER).order_by(_columns.made_at).limit(stored - MOST_STORED)
        connection.execute(delete(webhook_deliveries).where(_columns.id.in_(oldest)))
