"""Sums that are kept up to date, so that no reader counts rows; and up to where each was read."""

from sqlalchemy import Column, Double, Integer, String, Table, Text

from ragbandit.router.storage.sql.tables.columns import LABEL, LONG, metadata

counters = Table(
    "counters",
    metadata,
    Column(
        "label",
        LABEL,
        primary_key=True,
        comment="empty: of the whole store; spent:HASH: of a tenant or a key",
    ),
    Column("name", String(24), primary_key=True, comment="of the count; of what is spent the day, 2026-11-22"),
    Column("shard", Integer, primary_key=True, autoincrement=False, comment="summed when read"),
    Column("value", LONG, nullable=False, comment="of what is spent billionths of a dollar"),
    comment="counts that are moved with the rows, so that no reader counts them",
)

arm_hours = Table(
    "arm_hours",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("hour", Integer, primary_key=True, autoincrement=False, comment="hours since the epoch, UTC"),
    Column("arm", String(64), primary_key=True),
    Column("totals", Text, nullable=False, comment="JSON object: counts and sums of types/totals.py"),
    comment="what each arm did and earned in each hour",
)

reading_positions = Table(
    "reading_positions",
    metadata,
    Column("reader", String(128), primary_key=True, comment="arm_hours:LABEL, langfuse:HOST, ..."),
    Column("position", Text, nullable=False, comment="JSON object: up to where it has read"),
    Column("moved_at", Double, nullable=False),
    comment="up to where readers of the tables, and imports from other systems, have come",
)
