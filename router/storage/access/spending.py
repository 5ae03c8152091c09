"""Dollars spent by tenants and API keys per day (UTC): on answers, rewrites of questions, the judge and embeddings.

Every sum is a row of `counters`, changed in the transaction that writes the outcome, so the sum is exact at once. The
row's name is the day. Its label is a hash, since the name of a tenant may be longer than a label.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from sqlalchemy import Connection, delete, text

from ragbandit.router.storage.sql.bulk_insert import Row, run
from ragbandit.router.storage.sql.counters import Day, Moves, counting, day_of
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import counters
from ragbandit.shared.types import Outcome

#: dollars per unit of a counter; counters are whole numbers
_UNIT: Final = 1e-9
#: maximum dollars counted per outcome, so that wrong reports cannot overflow a 64-bit counter
MOST_DOLLARS: Final = 10_000.0
KEPT_DAYS: Final = 400
_PREFIX: Final = "spent:"
_CORRECTED: Final = "fixed:"
#: held until the end of a transaction of PostgreSQL
_LOCK: Final = text("SELECT pg_advisory_xact_lock(hashtextextended(:label, 0))")
_SPENT: Final = (
    "SELECT label, name, sum(value) AS sum FROM counters WHERE label IN ? AND name BETWEEN ? AND ? GROUP BY 1, 2"
)


@dataclass(frozen=True, slots=True)
class Spender:
    """A tenant (by name) or an API key (by public id)."""

    kind: Literal["tenant", "key"]
    name: str

    @property
    def label(self) -> str:
        return _PREFIX + self._digest

    @property
    def corrected_label(self) -> str:
        """Label of the part of the sums that corrections of prices have changed."""
        return _CORRECTED + self._digest

    @property
    def _digest(self) -> str:
        return hashlib.blake2b(f"{self.kind}\0{self.name}".encode(), digest_size=16).hexdigest()


def spenders_of(tenant: str, *, key: str | None) -> list[Spender]:
    if key is None:
        return [Spender("tenant", tenant)]
    return [Spender("tenant", tenant), Spender("key", key)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Dollars spent in a UTC day and month."""

    day: float = 0.0
    month: float = 0.0


def count_spending(moves: Moves, outcomes: Iterable[Outcome], *, rows: Mapping[str, Row]) -> None:
    """Count the cost of new outcomes. rows: decision id -> its row, with the columns `tenant` and `api_key`."""
    for outcome in outcomes:
        row = rows[outcome.decision_id]
        spenders = spenders_of(row["tenant"], key=row["api_key"])
        _tally(moves, spenders, dollars=outcome.cost.dollars, day=day_of(outcome.made_at))


def book(database: Database, spenders: Iterable[Spender], *, dollars: float, now: float) -> None:
    """Count dollars spent outside answers: on rewriting a question or on judging an answer. Raises StoreError."""
    if dollars > 0.0:
        with counting(database) as (_, moves):
            _tally(moves, spenders, dollars=dollars, day=day_of(now))


@dataclass(frozen=True, kw_only=True, slots=True)
class Reserved:
    """An estimate that is booked before a call, and stays if the call's cost remains unknown."""

    spenders: tuple[Spender, ...]
    dollars: float
    day: Day


def reserve(
    database: Database,
    spenders: Sequence[Spender],
    *,
    dollars: float,
    now: float,
    check: Callable[[Mapping[Spender, Spent]], None],
) -> Reserved:
    """Book an estimate if `check` does not raise for the sums so far. Raises what `check` raises, and StoreError.

    Reservations of a spender run one after another, in all processes, so together they exceed a budget by at most one.
    """
    reserved = Reserved(spenders=tuple(spenders), dollars=dollars, day=day_of(now))
    with counting(database) as (connection, moves):
        if not database.is_sqlite:  # SQLite has one writer at a time
            for label in sorted(spender.label for spender in spenders):
                connection.execute(_LOCK, {"label": label})
        check(spent(connection, spenders, now=now))
        _tally(moves, spenders, dollars=dollars, day=reserved.day)
    return reserved


def settle(database: Database, reserved: Reserved, *, dollars: float) -> None:
    """Replace an estimate by the cost. Raises StoreError; the estimate then stays."""
    change = _amount(dollars) - _amount(reserved.dollars)
    if change:
        with counting(database) as (_, moves):
            for spender in reserved.spenders:
                moves.add(reserved.day, change, label=spender.label)


def correct_spending(moves: Moves, spenders: Iterable[Spender], *, before: float, after: float, day: Day) -> None:
    """Change the sums of a day because of an outcome's right dollars, and count the change apart."""
    change = _amount(after) - _amount(before)
    for spender in spenders:
        moves.add(day, change, label=spender.label)
        moves.add(day, change, label=spender.corrected_label)


def _tally(moves: Moves, spenders: Iterable[Spender], *, dollars: float, day: Day) -> None:
    amount = _amount(dollars)
    if amount:
        for spender in spenders:
            moves.add(day, amount, label=spender.label)


def _amount(dollars: float) -> int:
    """Dollars of one call or answer as units of a counter."""
    return round(min(max(dollars, 0.0), MOST_DOLLARS) / _UNIT)


def spent(connection: Connection, spenders: Sequence[Spender], *, now: float) -> dict[Spender, Spent]:
    """Dollars of each spender on the day and in the month of `now`. Reads a range of the primary key per spender."""
    today = day_of(now)
    days: dict[str, dict[str, float]] = {spender.label: {} for spender in spenders}
    for row in run(connection, _SPENT, [*days], f"{today[:7]}-01", today):
        days[row["label"]][row["name"]] = float(row["sum"]) * _UNIT
    sums = {label: Spent(day=by_day.get(today, 0.0), month=sum(by_day.values())) for label, by_day in days.items()}
    return {spender: sums[spender.label] for spender in spenders}


def oldest_day(now: float) -> Day:
    """The first day whose sums are kept."""
    return day_of((datetime.fromtimestamp(now, UTC) - timedelta(days=KEPT_DAYS)).timestamp())


def forget_spending(connection: Connection, *, now: float) -> None:
    for prefix in (_CORRECTED, _PREFIX):
        is_spending = counters.c.label >= prefix, counters.c.label < prefix[:-1] + ";"
        connection.execute(delete(counters).where(*is_spending, counters.c.name < oldest_day(now)))
