"""Counters: how many rows are in which state, kept in a table and moved in the transactions that change the rows.

Reading them costs the same at a thousand and at a hundred million decisions. They are exact: a transaction that is
rolled back moves nothing. `counted` counts the tables instead; `ragbandit verify` compares the two.

On PostgreSQL every counter has SHARDS rows, and a process moves its own, so that routers do not wait for each other.
A transaction moves its counters last and in the order of their keys: whoever holds a counter needs no other lock any
more, so no two transactions wait for each other in a circle.
"""

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final, Literal, get_args

from sqlalchemy import Connection, RowMapping, and_, bindparam, delete, func, insert, or_, select, text

from ragbandit.router.storage.sql.closing import MISSING_OUTCOME, UNANSWERED, is_missing_outcome, is_unanswered
from ragbandit.router.storage.sql.tables import (
    closures,
    counters,
    decisions,
    feedback,
    held_feedback,
    judge_due,
    policies,
    updates,
    waiting,
)

CounterName = Literal[
    "decided",
    "feedback",
    "late_feedback",
    "learned",
    "defaulted",
    "waiting",
    "closed",
    "quarantined",
    "disagreements",
    "unanswered",
    "missing_outcome",
    "judge_due",
    "held",
]
#: names of counters of the whole store; the others are kept per label
_OF_THE_STORE: Final = ("decided", "feedback", "late_feedback", "judge_due")
#: raters of one decision disagree where they lie at least that far apart in quality
DISAGREE: Final = 0.5
#: where the label of the whole store's counters would stand
ALL: Final = ""
#: rows per counter on PostgreSQL; more processes than that share some, and wait for each other's commits there
SHARDS = 16

Row = RowMapping | Mapping[str, Any]
Sign = Literal[1, -1]

_MOVE_SQLITE = (
    "INSERT INTO counters (label, name, shard, value) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (label, name, shard) DO UPDATE SET value = counters.value + excluded.value"
)
_MOVE_POSTGRESQL = (
    "INSERT INTO counters (label, name, shard, value) "
    "SELECT label, name, %s, value FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS moved (label, name, value) "
    "ON CONFLICT (label, name, shard) DO UPDATE SET value = counters.value + excluded.value"
)


_KEPT: Final = (
    select(counters.c.name, func.sum(counters.c.value))
    .where(or_(counters.c.label == ALL, counters.c.label == bindparam("label")))
    .group_by(counters.c.name)
)


def new_shard(*, is_sqlite: bool) -> int:
    """The shard that a process moves. Drawn: in containers every process may have the same process id."""
    return 0 if is_sqlite else secrets.randbelow(SHARDS)


class Moves:
    """What one transaction changes of the counters."""

    def __init__(self) -> None:
        self._moved: Counter[tuple[str, str]] = Counter()

    def add(self, name: CounterName, count: int = 1, *, label: str = ALL) -> None:
        """Move a counter by `count`, which may be negative."""
        self._moved[label, name] += count

    def tally(self, label: str, *, name: str, amount: int) -> None:
        """Add to a sum that is no count of rows, and never recounted: what a spender has spent on a day, deliveries."""
        self._moved[label, name] += amount

    def updates(self, rows: Iterable[Row]) -> None:
        """Rows that come into `updates`."""
        for row in rows:
            self.add("learned" if row["source"] == "explicit" else "defaulted", 1, label=row["policy"])
            if row["disagreement"] is not None and row["disagreement"] >= DISAGREE:
                self.add("disagreements", 1, label=row["policy"])

    def closures(self, rows: Iterable[Row], *, sign: Sign = 1) -> None:
        """Rows that come into `closures`, or with sign -1 leave it."""
        for row in rows:
            name: CounterName = "quarantined" if row["state"] == "quarantined" else "closed"
            self.add(name, sign, label=row["policy"])

    def waiting(self, rows: Iterable[Row], *, sign: Sign = 1) -> None:
        """Rows that come into `waiting`, or with sign -1 leave it."""
        # Rows of one group are mostly alike: they are counted first, and each kind is moved once.
        names = ("policy", "run_by", "has_outcome", "has_feedback", "has_reward")
        for kind, count in Counter(map(itemgetter(*names), rows)).items():
            row = dict(zip(names, kind, strict=True))
            self.add("waiting", sign * count, label=row["policy"])
            self._flags(row, sign * count)

    def flagged(self, rows: Iterable[Row], **flags: bool) -> None:
        """Rows of `waiting`, as they were, whose flags change to these."""
        for row in rows:
            self._flags(row, -1)
            self._flags({**row, **flags}, 1)

    def _flags(self, row: Row, count: int) -> None:
        if is_unanswered(row):
            self.add("unanswered", count, label=row["policy"])
        if is_missing_outcome(row):
            self.add("missing_outcome", count, label=row["policy"])

    def write(self, connection: Connection, *, shard: int) -> None:
        """Move the rows of `counters`: the last statement of the transaction."""
        moved = sorted((label, name, count) for (label, name), count in self._moved.items() if count)
        self._moved.clear()
        if not moved:
            return
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql(_MOVE_SQLITE, [(label, name, shard, count) for label, name, count in moved])
            return
        labels, names, counts = (list(column) for column in zip(*moved, strict=True))
        connection.exec_driver_sql(_MOVE_POSTGRESQL, (shard, labels, names, counts))


@contextmanager
def moving(connection: Connection, *, shard: int) -> Iterator[Moves]:
    """The moves of the transaction that this connection is in; written at the end of the block."""
    moves = Moves()
    yield moves
    moves.write(connection, shard=shard)


def kept(connection: Connection, *, label: str) -> dict[str, int]:
    """Every counter of the store and of this label, as it is kept."""
    stored = {name: int(value) for name, value in connection.execute(_KEPT, {"label": label})}
    return {name: stored.get(name, 0) for name in get_args(CounterName)}


def counted(connection: Connection, *, label: str) -> dict[str, int]:
    """`kept`, counted from the tables: as long as they are."""

    def count(table: Any, *where: Any) -> int:
        return int(connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one())

    learned, closed = updates.c.policy == label, closures.c.policy == label
    waits = waiting.c.policy == label
    return {
        "decided": count(decisions),
        "feedback": count(feedback),
        "late_feedback": count(feedback, feedback.c.late),
        "learned": count(updates, learned, updates.c.source == "explicit"),
        "defaulted": count(updates, learned, updates.c.source != "explicit"),
        "waiting": count(waiting, waits),
        "disagreements": count(updates, learned, updates.c.disagreement >= DISAGREE),
        "closed": count(closures, closed, closures.c.state != "quarantined"),
        "quarantined": count(closures, closed, closures.c.state == "quarantined"),
        "unanswered": count(waiting, and_(waits, UNANSWERED)),
        "missing_outcome": count(waiting, and_(waits, MISSING_OUTCOME)),
        "judge_due": count(judge_due),
        "held": count(held_feedback, held_feedback.c.policy == label, held_feedback.c.released_at.is_(None)),
    }


def recount(connection: Connection) -> dict[str, tuple[int, int]]:
    """Count the tables and keep that; {"label name": (kept before, counted)} of those that differed.

    Within a write transaction. Writers wait at their last statement until it ends: they move what is counted here.
    """
    if connection.dialect.name == "postgresql":
        # A longer table takes longer than the time limit of a statement of ours.
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("LOCK TABLE counters IN EXCLUSIVE MODE"))
    labels = sorted({*connection.execute(select(policies.c.label)).scalars()} | _labels(connection))
    wrong: dict[str, tuple[int, int]] = {}
    rows: dict[tuple[str, str], int] = {}
    for label in labels or [ALL]:
        before = kept(connection, label=label)
        for name, value in counted(connection, label=label).items():
            owner = ALL if name in _OF_THE_STORE else label
            rows[owner, name] = value
            if before[name] != value:
                wrong[f"{owner} {name}".strip()] = (before[name], value)
    connection.execute(delete(counters).where(counters.c.name.in_(get_args(CounterName))))
    counts = [{"label": label, "name": name, "shard": 0, "value": value} for (label, name), value in rows.items()]
    connection.execute(insert(counters), counts)
    return wrong


def _labels(connection: Connection) -> set[str]:
    """Labels that decisions wait for: one that nobody registered waits too."""
    return set(connection.execute(select(waiting.c.policy).distinct()).scalars())
