"""Migrations of the database: columns that come; rows of tables that left go to JSON Lines first."""

import filecmp
import itertools
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from alembic import context, op
from sqlalchemy import Column, Connection, MetaData, Table, func, inspect, select

from ragbandit.router.storage.sql.tables import metadata
from ragbandit.shared.files import new_lines

log = logging.getLogger(__name__)


def add(revision: str) -> None:
    """Add the columns and indexes that older tables have since this revision."""
    for table in (one for one in metadata.sorted_tables if "since" not in one.info):
        for column in (one for one in table.columns if one.info.get("since") == revision):
            op.add_column(table.name, Column(column.name, column.type, comment=column.comment))
        for index in (one for one in table.indexes if one.info.get("since") == revision):
            index.create(op.get_bind())


def drop(connection: Connection, tables: Iterable[str]) -> None:
    """Drop each of these tables that exists, and write its rows to a file of the folder of exports.

    A database made by this release has none of them.
    """
    for name in tables:
        if inspect(connection).has_table(name):
            _export(connection, Table(name, MetaData(), autoload_with=connection, resolve_fks=False))
            op.drop_table(name)


def _export(connection: Connection, dropped: Table) -> None:
    """Write the rows of a table, if it has any, to TABLE.jsonl; to TABLE-2.jsonl if that file has other rows."""
    count = connection.execute(select(func.count()).select_from(dropped)).scalar_one()
    if not count:
        return
    folder = Path(context.config.attributes["exports"])
    folder.mkdir(parents=True, exist_ok=True)
    exported = folder / f"{dropped.name}.part"
    with new_lines(exported) as stream:
        for row in connection.execute(select(dropped)).mappings():
            stream.write(json.dumps(dict(row), default=_json).encode() + b"\n")
    numbers = (f"-{number}" for number in itertools.count(2))
    paths = (folder / f"{dropped.name}{suffix}.jsonl" for suffix in itertools.chain([""], numbers))
    path = next(path for path in paths if not path.exists() or filecmp.cmp(path, exported, shallow=False))
    exported.replace(path)
    log.warning(
        "dropped the table %s, which no feature uses any more: its %d rows are in %s", dropped.name, count, path
    )


def _json(value: Any) -> Any:
    """What JSON has no form for: bytes as hexadecimal digits."""
    return value.hex() if isinstance(value, bytes | memoryview) else str(value)
