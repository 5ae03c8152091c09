"""A smaller product: tables and columns of features that left; their rows are written to JSON Lines first.

A table goes where it is there: a database that was made by this release never had it.
"""

import json
import logging
from pathlib import Path
from typing import Any, Final

from alembic import context, op
from sqlalchemy import Connection, MetaData, Table, column, func, inspect, select, table

from ragbandit.router.storage.access.audit_log import ARCHIVED, record
from ragbandit.shared.files.json_lines import new_lines
from ragbandit.shared.types import Json

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
oldest_code = "0005"

log = logging.getLogger(__name__)

#: tables without a feature, those that refer to others first
_TABLES: Final[tuple[str, ...]] = ("webhook_deliveries", "checkpoints", "chains", "archive_segments")
#: (table, column) without a feature; their values are not written anywhere
_COLUMNS: Final[tuple[tuple[str, str], ...]] = (("erasures", "archived"),)


def upgrade() -> None:
    connection = op.get_bind()
    _note_archived(connection)
    for name in _TABLES:
        if inspect(connection).has_table(name):
            _export(connection, Table(name, MetaData(), autoload_with=connection, resolve_fks=False))
            op.drop_table(name)
    for name, gone in _COLUMNS:
        if gone in {one["name"] for one in inspect(connection).get_columns(name)}:
            op.drop_column(name, gone)


def _note_archived(connection: Connection) -> None:
    """Write down which updates lie in files of the archive: `verify` tells them from rows that somebody deleted."""
    if not inspect(connection).has_table("archive_segments"):
        return
    rows: Any = connection.execute(select(column("spans")).select_from(table("archive_segments"))).scalars()
    spans: dict[str, Json] = {}
    for label, (first, last) in sorted((label, span) for text in rows for label, span in json.loads(text).items()):
        before: Any = spans.setdefault(label, [])
        if before and first <= before[-1][1] + 1:
            before[-1][1] = max(last, before[-1][1])
        else:
            before.append([first, last])
    if spans:
        record(connection, actor="process:migrate", action=ARCHIVED, target="store", facts={"spans": spans})


def _export(connection: Connection, dropped: Table) -> None:
    """Write the rows of a table to TABLE.jsonl in the folder of exports, where it has any."""
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


def downgrade() -> None:
    """Nothing: what was dropped is in the exported files."""
