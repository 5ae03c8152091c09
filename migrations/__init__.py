"""Functions for migrations: add new columns and indexes; drop tables after their rows were written to JSON Lines."""

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
    """Add the columns and indexes of this revision to the tables of the first schema."""
    for table in metadata.sorted_tables:
        if "since" in table.info:
            continue
        for column in table.columns:
            if column.info.get("since") == revision:
                op.add_column(table.name, Column(column.name, column.type, comment=column.comment))
        for index in table.indexes:
            if index.info.get("since") == revision:
                index.create(op.get_bind())


def drop(connection: Connection, tables: Iterable[str]) -> None:
    """Export and drop these tables if they exist; a database created by this release has none of them."""
    for name in tables:
        if inspect(connection).has_table(name):
            _export(connection, Table(name, MetaData(), autoload_with=connection, resolve_fks=False))
            op.drop_table(name)


def _export(connection: Connection, dropped: Table) -> None:
    """Write the rows of a table to TABLE.jsonl, or to TABLE-2.jsonl if that file exists with different rows."""
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
    """A value that JSON does not support: bytes as hexadecimal digits, others as text."""
    return value.hex() if isinstance(value, bytes | memoryview) else str(value)
