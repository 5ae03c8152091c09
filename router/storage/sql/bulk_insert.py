"""Bulk insert: many rows in one statement, as SQLAlchemy batches them; and rows whose keys may be taken."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, insert
from sqlalchemy.dialects import postgresql, sqlite

Row = Mapping[str, Any]


def insert_into(connection: Connection, table: Table) -> "sqlite.Insert | postgresql.Insert":
    """An INSERT of this database, which has ON CONFLICT."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def insert_new(connection: Connection, table: Table, rows: Sequence[Row], *, key: str) -> set[str]:
    """Insert the rows whose key is not taken, first come first kept; returns the keys that were new.

    key: a column with a unique index. The connection must be in a write transaction.
    """
    if not rows:
        return set()
    first = {row[key]: row for row in reversed(rows)}
    # In the order of keys, so that two writers with the same keys never wait for each other in a circle.
    unique = [dict(first[name]) for name in sorted(first)]
    statement = insert_into(connection, table).on_conflict_do_nothing().returning(table.c[key])
    return set(connection.execute(statement, unique).scalars())


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows of which none is there. All of them have the same columns; a column left out is NULL."""
    if rows:
        connection.execute(insert(table), [dict(row) for row in rows])
