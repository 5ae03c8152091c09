"""Statements of every request, as text, and inserts of many rows in one statement.

SQLAlchemy takes several times as long over such a statement as SQLite itself, so `run` calls the driver of SQLite.

SQLite: `executemany` with plain values. PostgreSQL: one statement with all values for a few rows, and for more rows one
array per column, `INSERT ... SELECT FROM unnest(...)`: one round trip, and no temporary table, whose right many a
database takes away. (COPY into such a table takes 5 us of the client's time less per decision, of about 80.)
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, Table, types
from sqlalchemy.dialects import postgresql, sqlite

Row = RowMapping | Mapping[str, Any]


def run(connection: Connection, statement: str, *values: Any) -> list[dict[str, Any]]:
    """The rows of a statement. `?` stands for a value, `IN ?` for a list of texts; SQLite ignores FOR UPDATE."""
    text = _marked(statement, dialect=connection.dialect.name)
    if connection.dialect.name != "sqlite":
        result = connection.exec_driver_sql(text, values)
        return [dict(row) for row in result.mappings()] if result.returns_rows else []
    given = [json.dumps(value) if isinstance(value, list) else value for value in values]
    driver: Any = connection.connection.driver_connection
    cursor = driver.execute(text, given)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def run_many(connection: Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Run a statement of SQLite once for each row of values."""
    driver: Any = connection.connection.driver_connection
    driver.executemany(statement, rows)


@lru_cache(maxsize=256)
def _marked(statement: str, *, dialect: str) -> str:
    if dialect == "sqlite":
        return statement.replace("IN ?", "IN (SELECT value FROM json_each(?))").removesuffix(" FOR UPDATE")
    return statement.replace("IN ?", "= ANY(?)").replace("?", "%s")


def insert_into(connection: Connection, table: Table) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT of this database, which has ON CONFLICT."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def insert_new(connection: Connection, table: Table, rows: Sequence[Row], *, key: str) -> list[bool]:
    """Insert the rows whose key is not taken, of several with one key the first; for each row whether it was inserted.

    key: a column with a unique index. The connection must be in a write transaction.
    """
    if not rows:
        return []
    first = {row[key]: row for row in reversed(rows)}
    # In the order of keys, so that two writers with the same keys never wait for each other in a circle.
    unique = [first[name] for name in sorted(first)]
    if connection.dialect.name == "sqlite":
        # A write transaction of SQLite is the only one there is: nobody takes a key between these two statements.
        known = run(connection, f"SELECT {key} FROM {table.name} WHERE {key} IN ?", list(first))  # noqa: S608 # names of ours
        taken = {row[key] for row in known}
        fresh = [row for row in unique if row[key] not in taken]
        insert_rows(connection, table, fresh)
        new = {row[key] for row in fresh}
    else:
        statement, values = _insert(table, unique)
        inserted = connection.exec_driver_sql(f"{statement} ON CONFLICT DO NOTHING RETURNING {key}", values)
        new = set(inserted.scalars())
    return [row[key] in new and row is first[row[key]] for row in rows]


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows of which none is there. All of them have the same columns; a column left out is NULL."""
    if not rows:
        return
    if connection.dialect.name == "sqlite":
        names = _names(table, tuple(rows[0]))
        marks = ",".join("?" * len(names))
        statement = f"INSERT INTO {table.name} ({','.join(names)}) VALUES ({marks})"  # noqa: S608 # names of ours
        run_many(connection, statement, [tuple([row[name] for name in names]) for row in rows])
    else:
        connection.exec_driver_sql(*_insert(table, rows))


@lru_cache(maxsize=64)
def _names(table: Table, row: tuple[str, ...]) -> tuple[str, ...]:
    """The columns with these names, in the table's order."""
    return tuple(column.name for column in table.columns if column.name in row)


#: rows up to which PostgreSQL gets them as values: the arrays of one row cost a fifth of its whole write
_FEW: Final = 4


def _insert(table: Table, rows: Sequence[Row]) -> tuple[str, tuple[Any, ...]]:
    """The statement of PostgreSQL for these rows, and its parameters."""
    names = _names(table, tuple(rows[0]))
    if len(rows) > _FEW:
        return _unnested(table, names), tuple(_array(table, name, rows=rows) for name in names)
    marks = ",".join([f"({','.join(['%b'] * len(names))})"] * len(rows))
    statement = f"INSERT INTO {table.name} ({','.join(names)}) VALUES {marks}"  # noqa: S608 # names of ours
    return statement, tuple([row[name] for row in rows for name in names])


#: type of a column -> its type in an array of PostgreSQL, and what makes its values of one Python type: the driver
#: takes no list of several. Text without a length: a cast to VARCHAR(n) would cut a value that is too long.
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
    """The values of one column."""
    cast, values = _array_of(table.c[name].type)[1], [row[name] for row in rows]
    return values if cast is None else [None if value is None else cast(value) for value in values]
