"""A smaller product: tables and columns of features that left; their rows are written to JSON Lines first.

A table goes where it is there: a database that was made by this release never had it.
"""

import json
import logging
from pathlib import Path
from typing import Any, Final

from alembic import context, op
from sqlalchemy import Connection, MetaData, Table, func, inspect, select

from ragbandit.shared.files.json_lines import new_lines

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
oldest_code = "0005"

log = logging.getLogger(__name__)

#: tables without a feature, those that refer to others first
_TABLES: Final[tuple[str, ...]] = ("webhook_deliveries", "checkpoints", "chains")
#: (table, column) without a feature; their values are not written anywhere
_COLUMNS: Final[tuple[tuple[str, str], ...]] = ()


def upgrade() -> None:
    connection = op.get_bind()
    for name in _TABLES:
        if inspect(connection).has_table(name):
            table = Table(name, MetaData(), autoload_with=connection, resolve_fks=False)
            _export(connection, table)
            op.drop_table(name)
    for name, column in _COLUMNS:
        if column in {one["name"] for one in inspect(connection).get_columns(name)}:
            op.drop_column(name, column)


def _export(connection: Connection, table: Table) -> None:
    """Write the rows of a table to TABLE.jsonl in the folder of exports, where it has any."""
    count = connection.execute(select(func.count()).select_from(table)).scalar_one()
    if not count:
        return
    folder = Path(context.config.attributes["exports"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{table.name}.jsonl"
    with new_lines(path) as stream:
        for row in connection.execute(select(table)).mappings():
            stream.write(json.dumps(dict(row), default=_json).encode() + b"\n")
    log.warning("dropped the table %s, which no feature uses any more: its %d rows are in %s", table.name, count, path)


def _json(value: Any) -> Any:
    """What JSON has no form for: bytes as hexadecimal digits."""
    return value.hex() if isinstance(value, bytes | memoryview) else str(value)


def downgrade() -> None:
    """Nothing: what was dropped is in the exported files."""
