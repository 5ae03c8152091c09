"""Requests to erase texts."""

from sqlalchemy import Boolean, Column, Double, Integer, Table, Text

from ragbandit.router.storage.sql.tables.columns import ID, LONG, metadata

erasures = Table(
    "erasures",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("selection", Text, nullable=False, comment="JSON object: decision, tenant, before"),
    Column("features", Boolean, nullable=False, comment="features too"),
    Column("asked_at", Double, nullable=False),
    Column("finished_at", Double, comment="NULL: it was interrupted, or goes on"),
    Column("erased_to", ID, nullable=False, comment="id of the last decision that was looked at"),
    Column("decisions", LONG, nullable=False, comment="erased"),
    Column("waiting", LONG, nullable=False, comment="of these, closed by it"),
    comment="requests to erase texts, and how far each has come",
)
