"""Dollars that tenants and API keys have spent, by day (UTC): on answers, on rewriting questions, on the judge.

Each is a counter of `counters`, moved in the transaction that writes the outcome: exact at once, whatever Redis forgets
and whatever is erased. Its label is a hash, as names of tenants are longer than labels; its name is the day.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from sqlalchemy import Connection, delete, func, select

from ragbandit.router.storage.rows.outcome_rows import day_of
from ragbandit.router.storage.sql.bulk_insert import Row, insert_new
from ragbandit.router.storage.sql.counters import Day, Moves, counting
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import counters, service_secrets
from ragbandit.shared.types import Outcome

#: counters are whole numbers: of billionths of a dollar
_UNIT: Final = 1e-9
#: most that one outcome counts, dollars: a larger report must not fill a 64-bit counter
MOST_DOLLARS: Final = 10_000.0
#: days that are kept
KEPT_DAYS: Final = 400
_PREFIX: Final = "spent:"


@dataclass(frozen=True, slots=True)
class Spender:
    """Who spends: a tenant by its name, or a key by its public id."""

    kind: Literal["tenant", "key"]
    name: str

    @property
    def label(self) -> str:
        """The label of its counters."""
        return _PREFIX + hashlib.blake2b(f"{self.kind}\0{self.name}".encode(), digest_size=16).hexdigest()


def spenders_of(tenant: str, *, key: str | None) -> list[Spender]:
    """Who pays for a question of this tenant that came with this key."""
    return [Spender("tenant", tenant), *([] if key is None else [Spender("key", key)])]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Dollars that a spender has spent in the day and in the month (UTC) of a time."""

    day: float = 0.0
    month: float = 0.0


def count_spending(moves: Moves, outcomes: Iterable[Outcome], *, rows: Mapping[str, Row]) -> None:
    """Count what new outcomes cost. rows: decision id -> a row with the `tenant` and the `api_key` of the decision."""
    for outcome in outcomes:
        row = rows[outcome.decision_id]
        spenders = spenders_of(row["tenant"], key=row["api_key"])
        _tally(moves, spenders, dollars=outcome.cost.dollars, day=day_of(outcome.made_at))


def book(database: Database, spenders: Iterable[Spender], *, dollars: float, now: float) -> None:
    """Count the cost of rewriting a question or judging an answer. Raises StoreError."""
    if dollars > 0.0:
        with counting(database) as (_, moves):
            _tally(moves, spenders, dollars=dollars, day=day_of(now))


def _tally(moves: Moves, spenders: Iterable[Spender], *, dollars: float, day: str) -> None:
    amount = round(min(max(dollars, 0.0), MOST_DOLLARS) / _UNIT)
    for spender in spenders if amount else ():
        moves.add(Day(day), amount, label=spender.label)


def spent(connection: Connection, spenders: Sequence[Spender], *, now: float) -> dict[Spender, Spent]:
    """What each of them has spent in the day and the month of `now`. A range of the primary key for each."""
    today = day_of(now)
    month = counters.c.name >= f"{today[:7]}-01", counters.c.name <= today
    query = select(counters.c.label, counters.c.name, func.sum(counters.c.value)).where(
        counters.c.label.in_([one.label for one in spenders]), *month
    )
    days: dict[str, dict[str, float]] = {}
    for label, day, amount in connection.execute(query.group_by(counters.c.label, counters.c.name)):
        days.setdefault(label, {})[day] = float(amount) * _UNIT
    by_spender = {one: days.get(one.label, {}) for one in spenders}
    return {one: Spent(day=by_day.get(today, 0.0), month=sum(by_day.values())) for one, by_day in by_spender.items()}


def forget_spending(connection: Connection, *, now: float) -> None:
    """Delete the days that are too old."""
    oldest = day_of((datetime.fromtimestamp(now, UTC) - timedelta(days=KEPT_DAYS)).timestamp())
    ours = counters.c.label >= _PREFIX, counters.c.label < _PREFIX[:-1] + ";"
    connection.execute(delete(counters).where(*ours, counters.c.name < oldest))


#: name of the secret that the seeds of draws are made with
DRAWS: Final = "draws"


@dataclass(frozen=True, kw_only=True, slots=True)
class Secret:
    """A secret, and when it was made, in seconds since the epoch."""

    value: bytes
    made_at: float


def known_secret(database: Database, *, name: str) -> Secret | None:
    """The secret of this name; None: no process has needed it yet."""
    with database.read() as connection:
        row = connection.execute(select(service_secrets).where(service_secrets.c.name == name)).first()
    return None if row is None else Secret(value=bytes.fromhex(row.value), made_at=row.made_at)


def shared_secret(database: Database, *, name: str, now: float) -> bytes:
    """The secret of this name, 32 random bytes."""
    known = known_secret(database, name=name)
    if known is None:
        with database.write() as connection:
            row = {"name": name, "value": secrets.token_hex(32), "made_at": now}
            insert_new(connection, service_secrets, [row], key="name")
        known = known_secret(database, name=name)  # another process may have been first
    assert known is not None
    return known.value
