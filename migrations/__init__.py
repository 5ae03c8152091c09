"""Migrations of the database: columns that come and go; rows of tables that left go to JSON Lines first."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from alembic import context, op
from sqlalchemy import Column, Connection, MetaData, Table, func, inspect, select

from ragbandit.shared.files import new_lines

log = logging.getLogger(__name__)


def add(*columns: Column[Any]) -> None:
    """Add these columns to their tables."""
    for column in columns:
        op.add_column(column.table.name, Column(column.name, column.type, comment=column.comment))


def take_back(*columns: Column[Any]) -> None:
    """Drop the columns that `add` has added."""
    for column in columns:
        op.drop_column(column.table.name, column.name)


def drop(connection: Connection, *, tables: Iterable[str] = (), columns: Iterable[tuple[str, str]] = ()) -> None:
    """Drop each table and each (table, column) that is there; a database made by this release has none of them.

    Rows of a table go to TABLE.jsonl in the folder of exports, the values of a column nowhere.
    """
    for name in tables:
        if inspect(connection).has_table(name):
            _export(connection, Table(name, MetaData(), autoload_with=connection, resolve_fks=False))
            op.drop_table(name)
    for name, gone in columns:
        if inspect(connection).has_table(name) and gone in {
            one["name"] for one in inspect(connection).get_columns(name)
        }:
            op.drop_column(name, gone)


def _export(connection: Connection, dropped: Table) -> None:
    """Write the rows of a table to TABLE.jsonl, where it has any."""
    count = connection.execute(select(func.count()).select_from(dropped)).scalar_one()
    if not count:
        return
    folder = Path(context.config.attributes["exports"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{dropped.name}.jsonl"
    with new_lines(path) as stream:
        for row in connection.execute(select(dropped)).mappings():
            stream.write(json.dumps(dict(row), default=_json).encode() + b"\n")
    log.warning(
        "dropped the table %s, which no feature uses any more: its %d rows are in %s", dropped.name, count, path
    )


def _json(value: Any) -> Any:
    """What JSON has no form for: bytes as hexadecimal digits."""
    return value.hex() if isinstance(value, bytes | memoryview) else str(value)
