"""A store that is large: rows are copied within the database, so that a million of them take seconds and not hours."""

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import Table, event, select, text

from ragbandit.router.storage.sql.database import Database
from ragbandit.router.storage.sql.tables import closures, decisions, feedback, outcomes, updates

#: rows of a step: one transaction
_STEP: Final = 500_000
_N: Final = (
    "WITH RECURSIVE numbers(n) AS (SELECT CAST(:first AS INTEGER) UNION ALL SELECT n + 1 FROM numbers WHERE n < :last)"
)
#: what differs in the copies of a row; the newest decision stays the newest
_DIFFERS: Final[tuple[tuple[Table, Mapping[str, str], str], ...]] = (
    (decisions, {"id": "'0-' || n", "made_at": "made_at - n", "session": "'s-' || (n % 997)"}, ""),
    (outcomes, {"decision_id": "'0-' || n", "made_at": "made_at - n"}, ""),
    (feedback, {"id": "'f-' || n", "decision_id": "'0-' || n", "received_at": "received_at - n"}, ""),
    (updates, {"decision_id": "'0-' || n", "seq": "seq + 100 + n", "source": "'default'"}, "WHERE n % 3 > 0"),
    (closures, {"decision_id": "'0-' || n", "state": "'closed'", "made_at": "made_at - n"}, "WHERE n % 3 = 0"),
)
_KEYS: Final = {"decisions": "id"}


def grow(database: Database, *, first: int, last: int, like: Mapping[str, str]) -> None:
    """Insert the copies first..last of one row per table. like: table name -> key of that row."""
    for begin in range(first, last + 1, _STEP):
        for table, differs, where in _DIFFERS:
            if table.name in like:
                _copy(
                    database,
                    table,
                    differs,
                    where,
                    first=begin,
                    last=min(last, begin + _STEP - 1),
                    row=like[table.name],
                )
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("ANALYZE"))


def _copy(
    database: Database, table: Table, differs: Mapping[str, str], where: str, *, first: int, last: int, row: str
) -> None:
    names = [column.name for column in table.columns]
    values = ", ".join(differs.get(name, f'"{name}"') for name in names)
    listed = ", ".join(f'"{name}"' for name in names)
    key = _KEYS.get(table.name, "decision_id")
    # Materialized, because PostgreSQL would otherwise look for the row again for each copy.
    one = f"one AS MATERIALIZED (SELECT * FROM {table.name} WHERE {key} = :row)"
    query = f"INSERT INTO {table.name} ({listed}) {_N}, {one} SELECT {values} FROM one, numbers {where}"
    given: dict[str, Any] = {"first": first, "last": last, "row": row}
    with database.write() as connection:
        if not database.is_sqlite:  # what is copied is whole: nothing need be looked up for each row
            connection.execute(text("SET LOCAL session_replication_role = 'replica'"))
            connection.execute(text("SET LOCAL statement_timeout = 0"))
        found = connection.execute(select(table.c[key]).where(table.c[key] == row).limit(1)).first()
        assert found is not None, f"{table.name} has no row {row}"
        connection.execute(text(query), given)


@contextmanager
def steps_counted(database: Database) -> Iterator[Counter[str]]:
    """The steps of SQLite's machine that readers take, by thread."""
    counted, every = Counter[str](), 20

    def listening(connection: Any, _record: Any) -> None:
        def stepped() -> int:
            counted[threading.current_thread().name] += every
            return 0

        connection.set_progress_handler(stepped, every)

    event.listen(database.engine, "connect", listening)
    database.close()  # the next connections count
    yield counted
    event.remove(database.engine, "connect", listening)
    database.close()


@contextmanager
def rows_counted(database: Database) -> Iterator[Counter[str]]:
    """The rows that PostgreSQL reads for the statements of readers: each is explained once more, and run for that."""
    counted, explaining = Counter[str](), threading.local()

    def ran(connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: Any) -> None:
        if getattr(explaining, "now", False) or not statement.lstrip().startswith(("SELECT", "WITH")):
            return
        explaining.now = True
        plan = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar_one()
        explaining.now = False
        plan = json.loads(plan) if isinstance(plan, str) else plan
        counted[threading.current_thread().name] += rows_of(plan[0]["Plan"])

    event.listen(database.engine, "after_cursor_execute", ran)
    yield counted
    event.remove(database.engine, "after_cursor_execute", ran)


def rows_of(plan: Mapping[str, Any]) -> int:
    """Rows that the scans of a plan have read, those that they threw away as well."""
    below = plan.get("Plans", [])
    read = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
    return sum(map(rows_of, below)) + (0 if below else int(read * plan["Actual Loops"]))
