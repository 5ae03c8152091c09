"""Drops tables of removed features, if they exist; their rows are written to JSON Lines first."""

import json
from typing import Any, Final

from alembic import op
from sqlalchemy import Connection, column, inspect, select, table

from ragbandit.migrations import drop
from ragbandit.router.storage.access.audit_log import ARCHIVED, record
from ragbandit.shared.types import Json

revision = "0005"
down_revision = "0004"
oldest_code = "0005"

#: tables of removed features; tables that refer to others come first
_TABLES: Final[tuple[str, ...]] = ("webhook_deliveries", "checkpoints", "chains", "archive_segments")


def upgrade() -> None:
    connection = op.get_bind()
    _note_archived(connection)
    drop(connection, _TABLES)


def _note_archived(connection: Connection) -> None:
    """Record which updates are in archive files, so that `verify` can distinguish them from deleted rows."""
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
