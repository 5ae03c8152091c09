"""Positions: up to where readers have come, of our tables or of another system."""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select, update

from ragbandit.router.storage.sql.bulk_insert import insert_into, insert_new
from ragbandit.router.storage.sql.tables import reading_positions
from ragbandit.shared.errors import StoreError
from ragbandit.shared.types import Json


def position_of(connection: Connection, reader: str) -> dict[str, Any]:
    """Up to where a reader has come; empty before it began.

    Raises StoreError for a position that cannot be read: from the beginning, totals would count everything twice.
    """
    text = connection.execute(select(reading_positions.c.position).where(reading_positions.c.reader == reader)).scalar()
    try:
        return {} if text is None else dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"the position of {reader} in reading_positions cannot be read",
            field="position",
            remedy="restore the store from a backup; an import begins anew once its row is deleted",
        ) from error


def set_position(connection: Connection, reader: str, *, to: Mapping[str, Json], now: float) -> None:
    """Let a reader go on from there, once this transaction is committed."""
    row = {"position": _text(to), "moved_at": now}
    moved = insert_into(connection, reading_positions).values(reader=reader, **row)
    connection.execute(moved.on_conflict_do_update(index_elements=["reader"], set_=row))


def move_position(
    connection: Connection, reader: str, *, seen: Mapping[str, Json], to: Mapping[str, Json], now: float
) -> bool:
    """Let a reader go on from there; False, with nothing written, if it is not at `seen` any more."""
    row = {"position": _text(to), "moved_at": now}
    if not seen:
        return bool(insert_new(connection, reading_positions, [{"reader": reader, **row}], key="reader"))
    ours = reading_positions.c.reader == reader, reading_positions.c.position == _text(seen)
    return connection.execute(update(reading_positions).where(*ours).values(**row)).rowcount == 1


def _text(position: Mapping[str, Json]) -> str:
    return json.dumps(dict(position), sort_keys=True, separators=(",", ":"))
