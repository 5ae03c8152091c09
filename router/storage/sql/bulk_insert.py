"""Fast statements: SQL as text for the statements of every request, and inserts of many rows at once.

SQLAlchemy takes several times as long for such a statement as SQLite itself, so these functions call the drivers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from sqlalchemy import Connection, RowMapping, Table, types
from sqlalchemy.dialects import postgresql, sqlite

Row = RowMapping | Mapping[str, Any]
#: returns the rows of a statement that was sent
Rows = Callable[[], list[dict[str, Any]]]


def run(connection: Connection, statement: str, *values: Any) -> list[dict[str, Any]]:
    """Run a statement and return its rows. `?` is a value, and `IN ?` a list of texts. SQLite ignores locks."""
    return send(connection, statement, *values)()


def send(connection: Connection, statement: str, *values: Any) -> Rows:
    """Like `run`, but returns a function that returns the rows.

    PostgreSQL gets the statement when rows of it or of a later statement are read, or with the commit. Then it gets all
    statements that wait in one round trip. SQLite runs it now.
    """
    driver = _driver(connection)
    text = _adapt(statement, dialect=connection.dialect.name)
    if connection.dialect.name != "sqlite":
        return cast(Rows, driver.send(text, values))
    cursor = driver.execute(text, [json.dumps(value) if isinstance(value, list) else value for value in values])
    if cursor.description is None:
        return list
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor]
    return lambda: rows


def run_many(connection: Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Run a statement of SQLite once for each row of values."""
    _driver(connection).executemany(statement, rows)


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


@lru_cache(maxsize=256)
def _adapt(statement: str, *, dialect: str) -> str:
    if dialect == "sqlite":
        return (
            statement.replace("IN ?", "IN (SELECT value FROM json_each(?))")
            .removesuffix(" FOR UPDATE")
            .removesuffix(" FOR NO KEY UPDATE")
        )
    return statement.replace("IN ?", "= ANY(?)").replace("?", "%s")


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
    if connection.dialect.name == "sqlite":
        names = _names(table, tuple(unique[0]))
        statement = f"{_insert_one(table, names)} ON CONFLICT DO NOTHING"
        execute = _driver(connection).execute
        new = {row[key] for row in unique if execute(statement, [row[name] for name in names]).rowcount}
        return lambda: [row[key] in new and row is first[row[key]] for row in rows]
    statement, values = _insert(table, unique)
    inserted = _driver(connection).send(f"{statement} ON CONFLICT DO NOTHING RETURNING {key}", values)

    def are_new() -> list[bool]:
        new = {row[key] for row in inserted()}
        return [row[key] in new and row is first[row[key]] for row in rows]

    return are_new


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert new rows, all with the same columns; a missing column is NULL. They are sent as by `send`."""
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        names = _names(table, tuple(rows[0]))
        run_many(connection, _insert_one(table, names), [tuple([row[name] for name in names]) for row in rows])
    else:
        _driver(connection).send(*_insert(table, rows))


@lru_cache(maxsize=64)
def _insert_one(table: Table, names: tuple[str, ...]) -> str:
    return f"INSERT INTO {table.name} ({','.join(names)}) VALUES ({','.join('?' * len(names))})"  # noqa: S608 # names of ours


@lru_cache(maxsize=64)
def _names(table: Table, row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns if column.name in row)


#: maximum number of rows that PostgreSQL gets as values instead of arrays; for one row, arrays take a fifth longer
_FEW: Final = 4


def _insert(table: Table, rows: Sequence[Row]) -> tuple[str, tuple[Any, ...]]:
    names = _names(table, tuple(rows[0]))
    if len(rows) > _FEW:
        return _unnested(table, names), tuple(_array(table, name, rows=rows) for name in names)
    marks = ",".join([f"({','.join(['%b'] * len(names))})"] * len(rows))
    statement = f"INSERT INTO {table.name} ({','.join(names)}) VALUES {marks}"  # noqa: S608 # names of ours
    return statement, tuple([row[name] for row in rows for name in names])


#: (type of a column, type of its array in PostgreSQL, function that converts its values). Values are converted, since
#: the driver refuses arrays of mixed types. Texts become `text`, since a cast to VARCHAR(n) would cut longer ones.
_ARRAYS: Final[tuple[tuple[type[types.TypeEngine[Any]], str, Callable[[Any], Any] | None], ...]] = (
    (types.String, "text", None),
    (types.Float, "float8", float),
    (types.Boolean, "bool", bool),
    (types.LargeBinary, "bytea", None),
    (types.Integer, "int8", int),
)


def _array_of(column: types.TypeEngine[Any]) -> tuple[str, Callable[[Any], Any] | None]:
    return next((name, cast) for kind, name, cast in _ARRAYS if isinstance(column, kind))


@lru_cache(maxsize=64)
def _unnested(table: Table, names: tuple[str, ...]) -> str:
    arrays = ",".join(f"%b::{_array_of(table.c[name].type)[0]}[]" for name in names)
    return f"INSERT INTO {table.name} ({','.join(names)}) SELECT * FROM unnest({arrays})"  # noqa: S608 # names of ours


def _array(table: Table, name: str, *, rows: Sequence[Row]) -> list[Any]:
    _, cast = _array_of(table.c[name].type)
    values = [row[name] for row in rows]
    if cast is None:
        return values
    return [None if value is None else cast(value) for value in values]
