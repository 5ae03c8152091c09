"""Counters of rows by state.

A counter changes in the transaction that changes the rows, so it is exact. `row_counts` counts the rows themselves, for
`verify`. On PostgreSQL every counter has SHARDS rows, and a process changes only one of them, so that routers do not
block each other. A transaction changes its counters last and in the order of their keys, which prevents deadlocks.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from operator import itemgetter
from types import TracebackType
from typing import Any, Final, Literal, NewType, get_args

from sqlalchemy import RowMapping, and_, func, select, text

from ragbandit.router.storage.sql import tables
from ragbandit.router.storage.sql.bulk_insert import Row, insert_rows, send
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.json_columns import object_or_empty
from ragbandit.router.storage.sql.tables import closures, counters, feedback, jobs, updates, waiting

#: condition on `waiting`: the caller's own code runs the arm
IS_CALLERS: Final = waiting.c.run_by == "caller"

#: condition on `waiting`: a worker has to answer the decision
UNANSWERED: Final = and_(waiting.c.run_by == "worker", ~waiting.c.has_outcome)

#: condition on `waiting`: the feedback cannot be learned before the caller reports the outcome
MISSING_OUTCOME: Final = and_(IS_CALLERS, waiting.c.has_feedback, ~waiting.c.has_outcome, ~waiting.c.has_reward)


def is_missing_outcome(row: RowMapping | Mapping[str, Any]) -> bool:
    return bool(row["run_by"] == "caller" and row["has_feedback"] and not (row["has_outcome"] or row["has_reward"]))


CounterName = Literal[
    "decided",
    "feedback",
    "late_feedback",
    "learned",
    "defaulted",
    "waiting",
    "closed",
    "quarantined",
    "unanswered",
    "missing_outcome",
    "judge_due",
    "check_due",
    "label_due",
]
#: names of counters of the whole store; the other counters are kept per label
_OF_THE_STORE: Final = ("decided", "feedback", "late_feedback", "judge_due", "check_due", "label_due")
#: name of a counter of a day: dollars spent ("2026-11-22") or answers judged; `recount` leaves it unchanged
Day = NewType("Day", str)
#: name of a sum of a session or task: "dollars" or "turns"
SumName = NewType("SumName", str)
DAY_S: Final = 86_400
#: label of counters of the whole store
ALL: Final = ""

_ADD: Final = " ON CONFLICT (label, name, shard) DO UPDATE SET value = counters.value + excluded.value"

#: changes of a sum. Each change is a statement of its own, because one statement for several would lock rows in any
#: order
_CHANGE_SUM: Final = "UPDATE counters SET value = value + ? WHERE label = ? AND name = ? AND shard = 0"
_FORGET_SUM: Final = "DELETE FROM counters WHERE label = ? AND name IN ('dollars', 'turns') AND shard = 0"
_COUNTS: Final = "SELECT name, sum(value) AS value FROM counters WHERE label IN ? GROUP BY name"
#: prefix of the names of counters of deleted rows; counts of all time include deleted rows
GONE: Final = "gone:"


_KIND_NAMES: Final = ("policy", "run_by", "has_outcome", "has_feedback", "has_reward")
_KIND: Final = itemgetter(*_KIND_NAMES)


class Increments:
    """Changes of counters, collected for the end of a transaction. prefix: of their names, "" or GONE."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._moved: dict[tuple[str, str], int] = {}
        self._sums: dict[tuple[str, str], int] = {}
        self._forgotten = set[str]()

    def add(self, name: CounterName | Day, count: int = 1, *, label: str = ALL) -> None:
        """Add `count` to a counter. label: a ledger's, or ALL; if `name` is a Day, a Spender's or a judged arm's."""
        key = label, self._prefix + name
        self._moved[key] = self._moved.get(key, 0) + count

    def change_sum(self, name: SumName, count: int, *, label: str) -> None:
        """Add to a stored sum of a session or task. A sum that is not stored stays missing."""
        self._sums[label, name] = self._sums.get((label, name), 0) + count

    def forget_sum(self, label: str) -> None:
        """Delete the stored sum of a session or task."""
        self._forgotten.add(label)

    def count_updates(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.add("learned" if row["source"] == "explicit" else "defaulted", label=row["policy"])

    def count_closures(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.add("quarantined" if row["state"] == "quarantined" else "closed", label=row["policy"])

    def count_waiting(self, rows: Iterable[Row], *, sign: Literal[1, -1] = 1) -> None:
        """Count new rows of `waiting`, or with sign -1 deleted rows."""
        # For speed: most rows of a group are equal in these columns, so equal rows are counted together.
        kinds: dict[tuple[Any, ...], int] = {}
        for kind in map(_KIND, rows):
            kinds[kind] = kinds.get(kind, 0) + sign
        for kind, count in kinds.items():
            row = dict(zip(_KIND_NAMES, kind, strict=True))
            self.add("waiting", count, label=row["policy"])
            self._count_row_flags(row, count)

    def count_flags(self, rows: Iterable[Row], **flags: bool) -> None:
        """Count rows of `waiting` whose flags change. rows: before the change. flags: new values."""
        for row in rows:
            self._count_row_flags(row, -1)
            self._count_row_flags({**row, **flags}, 1)

    def _count_row_flags(self, row: Row, count: int) -> None:
        if row["run_by"] == "worker":
            if not row["has_outcome"]:  # as in UNANSWERED
                self.add("unanswered", count, label=row["policy"])
        elif is_missing_outcome(row):
            self.add("missing_outcome", count, label=row["policy"])

    def write(self, connection: Connection, *, shard: int) -> None:
        """Change the rows of `counters`; must be the last statement of the transaction."""
        moved, self._moved = self._moved, {}
        rows = []
        for (label, name), count in sorted(moved.items()):
            if count:
                rows.append({"label": label, "name": name, "shard": shard, "value": count})
        insert_rows(connection, counters, rows, end=_ADD)
        sums, self._sums = self._sums, {}
        for (label, name), count in sorted(sums.items()):
            if count and label not in self._forgotten:
                send(connection, _CHANGE_SUM, count, label, name)
        for label in sorted(self._forgotten):
            send(connection, _FORGET_SUM, label)


def day_of(now: float) -> Day:
    """The UTC day, for example "2026-11-21". now: seconds since 1970."""
    return Day(datetime.fromtimestamp(now, UTC).date().isoformat())


def next_day_start(now: float) -> float:
    """Start of the next UTC day, seconds since 1970."""
    return (now // DAY_S + 1) * DAY_S


class WriteTransaction:
    """A write transaction with an empty Increments, whose changes are written at the end of the `with` block."""

    __slots__ = ("_connection", "_moves", "_shard", "_use")

    def __init__(self, database: Database, *, foreign_keys: bool = True) -> None:
        self._use, self._shard = database.write(foreign_keys=foreign_keys), database.shard

    def __enter__(self) -> tuple[Connection, Increments]:
        self._connection, self._moves = self._use.__enter__(), Increments()
        return self._connection, self._moves

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self._moves.write(self._connection, shard=self._shard)
            except BaseException as failed:
                self._use.__exit__(type(failed), failed, failed.__traceback__)
                raise
        self._use.__exit__(kind, error, trace)


def stored_counts(connection: Connection, *, label: str, prefix: str = "") -> dict[str, int]:
    """Name of a counter without `prefix` -> value, of the store and of this label. prefix: "" or GONE"""
    return send_stored_counts(connection, label=label, prefix=prefix)()


def send_stored_counts(connection: Connection, *, label: str, prefix: str = "") -> Callable[[], dict[str, int]]:
    """Like `stored_counts`, but only sends the query, and returns a function that returns the counters."""
    rows = send(connection, _COUNTS, [ALL, label])

    def counts() -> dict[str, int]:
        stored = {row["name"]: int(row["value"]) for row in rows()}
        return {name: stored.get(prefix + name, 0) for name in get_args(CounterName)}

    return counts


def row_counts(connection: Connection, *, label: str) -> dict[str, int]:
    """The values that `stored_counts` should return: counts of stored rows and of deleted ones (GONE). Takes time
    proportional to the rows.
    """

    def count(table: Any, *where: Any) -> int:
        return int(connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one())

    learned, closed = updates.c.policy == label, closures.c.policy == label
    unlearned = waiting.c.policy == label
    counts = {
        "decided": count(tables.decisions, tables.decisions.c.turn_of.is_(None)),
        "feedback": count(feedback),
        "late_feedback": count(feedback, feedback.c.late),
        "learned": count(updates, learned, updates.c.source == "explicit"),
        "defaulted": count(updates, learned, updates.c.source != "explicit"),
        "waiting": count(waiting, unlearned),
        "closed": count(closures, closed, closures.c.state != "quarantined"),
        "quarantined": count(closures, closed, closures.c.state == "quarantined"),
        "unanswered": count(waiting, and_(unlearned, UNANSWERED)),
        "missing_outcome": count(waiting, and_(unlearned, MISSING_OUTCOME)),
        **{f"{kind}_due": count(jobs, jobs.c.kind == kind) for kind in ("judge", "check", "label")},
    }
    removed = stored_counts(connection, label=label, prefix=GONE)
    return {name: value + removed[name] for name, value in counts.items()}


def count_not_by_policy(connection: Connection) -> int:
    """Number of decisions that no policy has made (NOT_BY_POLICY), from the totals, which lack the newest decisions."""
    of_policies, totals_of = tables.arm_hours.c.policy.in_(select(tables.policies.c.label)), tables.arm_hours.c.totals
    rows = connection.execute(select(totals_of).where(of_policies, tables.arm_hours.c.hour == tables.EVER))
    count = 0
    for totals in map(object_or_empty, rows.scalars()):
        chosen = sum(totals.get(name, 0) for name in ("undrawn", "forced", "killed"))
        count += min(chosen, totals.get("decided", 0))
    return count


def recount(connection: Connection) -> dict[str, tuple[int, int]]:
    """Set counters to `row_counts` in a write transaction. Returns "label name" -> (old, new value) of changes."""
    if not connection.is_sqlite:
        # To count a large table takes longer than the usual time limit of a statement.
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("LOCK TABLE counters IN EXCLUSIVE MODE"))
    # A label may have rows in `waiting` without being registered.
    labels = sorted(connection.execute(select(tables.policies.c.label).union(select(waiting.c.policy))).scalars())
    wrong: dict[str, tuple[int, int]] = {}
    rows: dict[tuple[str, str], int] = {}
    for label in labels or [ALL]:
        before = stored_counts(connection, label=label)
        for name, value in row_counts(connection, label=label).items():
            owner = ALL if name in _OF_THE_STORE else label
            rows[owner, name] = value
            if before[name] != value:
                wrong[f"{owner} {name}".strip()] = (before[name], value)
    connection.execute(counters.delete().where(counters.c.name.in_(get_args(CounterName))))
    counts = [{"label": label, "name": name, "shard": 0, "value": value} for (label, name), value in rows.items()]
    connection.execute(counters.insert(), counts)
    return wrong
