"""Fast statements: SQL as text for the statements of every request, and inserts of many rows at once.

SQLAlchemy takes several times as long for such a statement as SQLite itself, so these functions call the drivers.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from sqlalchemy import Connection, RowMapping, Table
from sqlalchemy.dialects import postgresql, sqlite

Row = RowMapping | Mapping[str, Any]
#: returns the rows of a statement that was sent
Rows = Callable[[], list[dict[str, Any]]]


def run(connection: Connection, statement: str, *values: Any) -> list[dict[str, Any]]:
    """Run a statement and return its rows. `?` is a value, and `IN ?` a list of texts. SQLite ignores locks."""
    return send(connection, statement, *values)()


def send(connection: Connection, statement: str, *values: Any) -> Rows:
    """Like `run`, but returns a function that returns the rows.

    PostgreSQL gets the statement when its rows or those of a later statement are read, or with the commit. All
    statements that wait are sent in one round trip. SQLite runs the statement now.
    """
    driver, text = _driver(connection), _adapt(statement, dialect=connection.dialect.name)
    values = tuple([json.dumps(value) if isinstance(value, list) else value for value in values])
    if connection.dialect.name != "sqlite":
        return cast(Rows, driver.send(text, values))
    rows = _rows(driver.execute(text, values))
    return lambda: rows


def _rows(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _driver(connection: Connection) -> Any:
    return connection.connection.dbapi_connection  # equals `driver_connection`, and takes fewer calls


@lru_cache(maxsize=256)
def _adapt(statement: str, *, dialect: str) -> str:
    if dialect == "sqlite":
        return re.sub(r" FOR (NO KEY )?UPDATE$", "", statement).replace("IN ?", "IN (SELECT value FROM json_each(?))")
    return statement.replace("IN ?", "= ANY(ARRAY(SELECT json_array_elements_text(?)))").replace("?", "%s")


def insert_into(connection: Connection, table: Table) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT with the ON CONFLICT of this database."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def insert_new(connection: Connection, table: Table, rows: Sequence[Row], *, key: str) -> list[bool]:
    """Insert the first row of each key that is not stored. Returns for each row whether it was inserted."""
    return send_new(connection, table, rows, key=key)()


def send_new(connection: Connection, table: Table, rows: Sequence[Row], *, key: str) -> Callable[[], list[bool]]:
    """Like `insert_new`, but sent as by `send`; returns a function that returns its result."""
    if not rows:
        return list
    first = {row[key]: row for row in reversed(rows)}
    # The order of keys prevents deadlocks between writers.
    unique = [first[name] for name in sorted(first)]
    inserted = _insert(connection, table, unique, end=f" ON CONFLICT DO NOTHING RETURNING {key}")

    def are_new() -> list[bool]:
        new = {row[key] for row in inserted()}
        return [row[key] in new and row is first[row[key]] for row in rows]

    return are_new


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row], *, end: str = "") -> None:
    """Insert rows with the same columns, as by `send`; a missing column is NULL. end: last clause of the statement."""
    if rows:
        _insert(connection, table, rows, end=end)


def _insert(connection: Connection, table: Table, rows: Sequence[Row], *, end: str) -> Rows:
    """PostgreSQL gets one JSON text, which takes its driver less time than a value or an array for each column."""
    statement, names = _insertion(table, tuple(rows[0]), dialect=connection.dialect.name)
    if connection.dialect.name == "sqlite":
        driver, statement = _driver(connection), statement + end
        values = [[row[name] for name in names] for row in rows]
        if "RETURNING" not in end:
            driver.executemany(statement, values)
            return list
        inserted = [new for row in values for new in _rows(driver.execute(statement, row))]
        return lambda: inserted
    objects = [{name: row[name] for name in names} for row in rows]
    text = json.dumps(objects, ensure_ascii=False, default=lambda value: f"\\x{value.hex()}")
    return send(connection, statement + end, text)


@lru_cache(maxsize=64)
def _insertion(table: Table, row: tuple[str, ...], *, dialect: str) -> tuple[str, tuple[str, ...]]:
    names = tuple(column.name for column in table.columns if column.name in row)
    columns, rows = ",".join(names), f"VALUES ({','.join('?' * len(names))})"
    if dialect != "sqlite":
        rows = f"SELECT {columns} FROM json_populate_recordset(NULL::{table.name}, ?)"  # noqa: S608 # names of ours
    return f"INSERT INTO {table.name} ({columns}) {rows}", names  # names of ours
