"""Fast statements: SQL as text for the statements of every request, and inserts of many rows at once.

SQLAlchemy takes several times as long for such a statement as SQLite itself, so these functions call the drivers. They
call functions of C where they can: for a request with a few rows, calls of Python functions take most of the time.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from json.encoder import encode_basestring_ascii
from operator import itemgetter
from typing import Any, Final

import sqlalchemy
from sqlalchemy import RowMapping, Table
from sqlalchemy.dialects import postgresql, sqlite

from ragbandit.router.storage.sql.connections import Connection
from ragbandit.shared.texts.json_values import fast_json_bytes, is_plain

Row = RowMapping | Mapping[str, Any]
#: returns the rows of a statement that was sent
Rows = Callable[[], list[dict[str, Any]]]
_FIRST: Final = itemgetter(0)
_UNION: Final = re.compile(r"IN \(\?( UNION ALL SELECT [^()?]* IN \?)\)")


def run_statement(connection: Connection, statement: str, *values: Any) -> list[dict[str, Any]]:
    """Run a statement and return its rows. `?` is a value, and `IN ?` a list of texts. SQLite ignores locks.

    `IN (? UNION ALL SELECT ... IN ?)` is a list and the rows of a query. PostgreSQL uses an index for it, but none for
    `id IN ? OR id IN (SELECT ...)`.
    """
    return send(connection, statement, *values)()


def send(connection: Connection, statement: str, *values: Any) -> Rows:
    """Like `run_statement`, but returns a function that returns the rows.

    PostgreSQL gets the statement when rows of it or of a later statement are read, or with the commit. All
    pending statements are sent in one round trip. SQLite runs the statement now.
    """
    given = [*values]
    for position, value in enumerate(values):
        if isinstance(value, list):
            given[position] = f"[{','.join(map(encode_basestring_ascii, value))}]"  # JSON list of the texts
    text = _adapt(statement, is_sqlite=connection.is_sqlite)
    if not connection.is_sqlite:
        sent: Rows = connection.driver.send(text, given)
        return sent
    cursor = connection.driver.execute(text, given)
    names = map(_FIRST, cursor.description or ())
    return list(map(dict, map(zip, repeat([*names]), cursor))).copy


@lru_cache(maxsize=256)
def _adapt(statement: str, *, is_sqlite: bool) -> str:
    """The statement in the SQL of the database, with the placeholders of its driver."""
    if is_sqlite:
        listed = "IN (SELECT value FROM json_each(?){})"
        statement = re.sub(r" FOR (NO KEY )?UPDATE$", "", statement)
    else:
        listed = "= ANY(ARRAY(SELECT json_array_elements_text(?){}))"
    statement = _UNION.sub(lambda match: listed.format(match[1]), statement).replace("IN ?", listed.format(""))
    return statement if is_sqlite else statement.replace("?", "%s")


def insert_into(connection: sqlalchemy.Connection, table: Table) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT with the ON CONFLICT of this database."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def put_rows(connection: sqlalchemy.Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows with the same columns. A stored row with the same primary key gets their values."""
    insert = insert_into(connection, table)
    changes = {name: insert.excluded[name] for name in rows[0] if not table.c[name].primary_key}
    connection.execute(insert.on_conflict_do_update(index_elements=table.primary_key, set_=changes), [*map(dict, rows)])


def insert_new(connection: Connection, table: Table, rows: Sequence[Row], *, key: str) -> list[bool]:
    """Insert the first row of each key that is not stored. Returns for each row whether it was inserted."""
    return send_new(connection, table, rows, key=key)()


def send_new(connection: Connection, table: Table, rows: Sequence[Row], *, key: str) -> Callable[[], list[bool]]:
    """Like `insert_new`, but sent as by `send`; returns a function that returns its result."""
    if not rows:
        return list
    key_of = itemgetter(key)
    first = dict(zip(map(key_of, reversed(rows)), reversed(rows), strict=True))
    # The order of keys prevents deadlocks between writers.
    ordered = list(map(first.__getitem__, sorted(first)))
    inserted = insert_rows(connection, table, ordered, end=f" ON CONFLICT DO NOTHING RETURNING {key}")

    def are_new() -> list[bool]:
        new = set(map(key_of, inserted()))
        return [row[key] in new and row is first[row[key]] for row in rows]

    return are_new


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row], *, end: str = "") -> Rows:
    """Insert rows with the same columns, as by `send`; a missing column is NULL. end: last clause of the statement.

    PostgreSQL gets one JSON text, which takes its driver less time than a value or an array for each column.
    """
    if not rows:
        return list
    statement, names = _insertion(table, tuple(rows[0]), end=end, is_sqlite=connection.is_sqlite)
    values = map(itemgetter(*names), rows)  # tuples, since every row has several columns
    if not connection.is_sqlite:
        objects = list(map(dict, map(zip, repeat(names), values)))
        data = fast_json_bytes(objects) if is_plain(objects) else None  # None for rows with bytes
        text = json.dumps(objects, ensure_ascii=False, default=_hex) if data is None else data.decode()
        return send(connection, statement, text)
    if "RETURNING" not in end:
        connection.driver.executemany(statement, values)
        return list
    inserted: list[dict[str, Any]] = []
    for row in values:
        inserted += send(connection, statement, *row)()
    return inserted.copy


def _hex(value: bytes) -> str:
    return f"\\x{value.hex()}"


@lru_cache(maxsize=64)
def _insertion(table: Table, row: tuple[str, ...], *, end: str, is_sqlite: bool) -> tuple[str, tuple[str, ...]]:
    names = tuple(column.name for column in table.columns if column.name in row)
    columns, rows = ",".join(names), f"VALUES ({','.join('?' * len(names))})"
    if not is_sqlite:
        rows = f"SELECT {columns} FROM json_populate_recordset(NULL::{table.name}, ?)"  # noqa: S608 # names of ours
    return f"INSERT INTO {table.name} ({columns}) {rows}{end}", names  # names of ours
