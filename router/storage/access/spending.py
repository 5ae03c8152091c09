"""Dollars spent by tenants and API keys per day (UTC): on answers, on rewriting questions, on the judge, on embeddings.
Sessions and tasks with a limit spend, too; their sums have no day (turn_sums.py).

The functions of reservations.py change the sums with each call, and those of corrections.py change them afterwards.
Every sum is a row of `counters`, changed in the transaction that writes the outcome, so the sum is exact at once. The
row's name is the day. Its label is a hash, since the name of a tenant may be longer than a label. Dollars that no
outcome explains (rewriting, judging, embeddings, runs whose process ended, corrections) are also summed in rows whose
names end with OTHER, so that `verify` can compare the rest with the outcomes. Sessions and tasks have such rows, too:
a sum that is counted again includes the possible cost of killed runs.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import delete

from ragbandit.router.storage.sql.bulk_insert import run_statement, send
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.counters import Day, Increments, SumName, day_of
from ragbandit.router.storage.sql.tables import counters
from ragbandit.shared.types import TURN_KINDS, DecisionId, Period, SpenderKind

#: dollars of one unit; counters and reservations are whole numbers of units
UNIT: Final = 1e-9
#: maximum dollars counted per outcome, so that wrong reports cannot overflow a 64-bit counter
MOST_DOLLARS: Final = 10_000.0
#: number of days whose sums are kept
KEPT_DAYS: Final = 400
#: start of the labels of all sums
PREFIX: Final = "spent:"
#: end of the name of a sum of dollars that no outcome explains
OTHER: Final = "+"
#: names of the sums of sessions and tasks (TURN_KINDS), which cover all days
DOLLARS, TURNS = SumName("dollars"), SumName("turns")
#: query for the estimates of answers that run or are queued (reservations.py); it reads the index `jobs_reserved` only
_RESERVED: Final = (
    "SELECT tenant, api_key, sum(reserved) AS sum FROM jobs WHERE reserved IS NOT NULL GROUP BY tenant, api_key"
)
_OWN: Final = "SELECT reserved FROM jobs WHERE kind = 'answer' AND decision_id = ?"
_SPENT: Final = (
    "SELECT label, name, sum(value) AS sum FROM counters WHERE label IN ? AND name BETWEEN ? AND ? GROUP BY 1, 2"
)


@dataclass(frozen=True, slots=True)
class Spender:
    """A tenant (by name), an API key (by public id), a session (`session_spender`), or a task (by first decision)."""

    kind: SpenderKind
    name: str

    @property
    def label(self) -> str:
        return PREFIX + self._hash.hex()

    @property
    def lock(self) -> int:
        """Number of the spender's advisory lock in PostgreSQL."""
        return int.from_bytes(self._hash[:8], signed=True)

    @property
    def _hash(self) -> bytes:
        return hashlib.blake2b(f"{self.kind}\0{self.name}".encode(), digest_size=16).digest()


def spenders_of(tenant: str, *, key: str | None) -> list[Spender]:
    if key is None:
        return [Spender("tenant", tenant)]
    return [Spender("tenant", tenant), Spender("key", key)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    """Dollars spent in a UTC day and month, and the estimated dollars of answers that run or are queued."""

    day: float = 0.0
    month: float = 0.0
    reserved: float = 0.0
    #: dollars of the day that no outcome explains
    other: float = 0.0

    def of(self, period: Period) -> float:
        """Dollars of the period, including estimated dollars of answers that run or are queued."""
        return (self.day if period == "day" else self.month) + self.reserved


def change_dollars(tally: Increments, spenders: Sequence[Spender], *, before: float, after: float, now: float) -> None:
    """Replace the dollars `before` by `after` in the counts for the day of `now`."""
    for amount in (-before, after):
        count_dollars(tally, spenders, dollars=amount, now=now)


def lock(connection: Connection, spenders: Iterable[Spender]) -> None:
    """Block other transactions that admit calls of these spenders, until the end. SQLite has one writer anyway."""
    if not connection.is_sqlite:
        for number in sorted({spender.lock for spender in spenders}):
            send(connection, "SELECT pg_advisory_xact_lock(?::bigint)", number)


def count_dollars(
    tally: Increments, spenders: Iterable[Spender], *, dollars: float, now: float, is_outcome: bool = False
) -> None:
    """Count dollars, which may be negative, on the day of `now`. is_outcome: whether a stored outcome has this cost."""
    day, amount = day_of(now), round(min(max(dollars, -MOST_DOLLARS), MOST_DOLLARS) / UNIT)
    if not amount:
        return
    for spender in spenders:
        if spender.kind in TURN_KINDS:
            tally.change_sum(DOLLARS, amount, label=spender.label)
        else:
            tally.add(day, amount, label=spender.label)
        if not is_outcome:
            tally.add(Day(day + OTHER), amount, label=spender.label)


def read_spending(
    connection: Connection, spenders: Sequence[Spender], *, now: float, excluded: DecisionId | None = None
) -> dict[Spender, Spent]:
    """Dollars of each spender on the day and in the month of `now`, and in answers that run or are queued.

    excluded: a decision whose own estimate does not count. Reads a range of the primary key per spender.
    """
    today = day_of(now)
    days: dict[str, dict[str, float]] = {spender.label: {} for spender in spenders}
    for row in run_statement(connection, _SPENT, [*days], f"{today[:7]}-01", today + OTHER):
        days[row["label"]][row["name"]] = float(row["sum"]) * UNIT
    reserved = _reserved(connection, spenders, excluded=excluded)
    return {
        spender: Spent(
            day=days[spender.label].get(today, 0.0),
            month=sum(dollars for name, dollars in days[spender.label].items() if not name.endswith(OTHER)),
            reserved=reserved[spender],
            other=days[spender.label].get(today + OTHER, 0.0),
        )
        for spender in spenders
    }


def _reserved(
    connection: Connection, spenders: Sequence[Spender], *, excluded: DecisionId | None
) -> dict[Spender, float]:
    sums = dict.fromkeys(spenders, 0.0)
    own = [] if excluded is None else run_statement(connection, _OWN, excluded)
    left_out = sum(row["reserved"] or 0 for row in own)
    for row in run_statement(connection, _RESERVED):
        for spender in spenders_of(row["tenant"] or "", key=row["api_key"]):
            if spender in sums:
                sums[spender] += float(row["sum"]) * UNIT
    return {spender: max(0.0, dollars - left_out * UNIT) for spender, dollars in sums.items()}


def oldest_day(now: float) -> Day:
    """The first day whose sums are kept."""
    return day_of((datetime.fromtimestamp(now, UTC) - timedelta(days=KEPT_DAYS)).timestamp())


def forget_spending(connection: Connection, *, now: float) -> None:
    is_spending = counters.c.label >= PREFIX, counters.c.label < PREFIX[:-1] + ";"
    connection.execute(delete(counters).where(*is_spending, counters.c.name < oldest_day(now)))
