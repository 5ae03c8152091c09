"""Positions: how far a reader has read tables, as JSON objects in the store, so that another process can continue."""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from ragbandit.router.storage.sql.bulk_insert import insert_new, put_rows
from ragbandit.router.storage.sql.connections import Connection
from ragbandit.router.storage.sql.tables import reading_positions


def position_of(connection: Connection, reader: str) -> dict[str, Any]:
    """Position of a reader; {} before it has read anything."""
    text = connection.execute(select(reading_positions.c.position).where(reading_positions.c.reader == reader)).scalar()
    return {} if text is None else dict(json.loads(text))


def move_position(connection: Connection, reader: str, *, position: Mapping[str, Any], now: float) -> None:
    text = json.dumps(dict(position), sort_keys=True, separators=(",", ":"))
    put_rows(connection, reading_positions, [{"reader": reader, "position": text, "moved_at": now}])


def lock_position(connection: Connection, reader: str, *, now: float) -> None:
    """Lock a position: until this transaction ends, others that lock it are blocked. SQLite has one writer anyway."""
    insert_new(connection, reading_positions, [{"reader": reader, "position": "{}", "moved_at": now}], key="reader")
    row = select(reading_positions.c.reader).where(reading_positions.c.reader == reader)
    connection.execute(row.with_for_update())
