"""Where old decisions went: segments of the archive, and erasures."""

from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, String, Table, Text

from ragbandit.router.storage.sql.tables.columns import ID, LONG, metadata

archive_segments = Table(
    "archive_segments",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("root", Text, nullable=False, comment="folder or fsspec URL"),
    Column("manifest_sha256", String(64), nullable=False),
    Column("seal", String(64), nullable=False, comment="sha256 of the seal before it and of what is never erased"),
    Column("decisions", BigInteger, nullable=False),
    Column("spans", Text, nullable=False, comment="JSON object: label -> first and last seq"),
    Column("kept", Text, nullable=False, comment="JSON list of decisions that stayed in the database"),
    Column("made_before", Double, nullable=False),
    Column("made_at", Double, nullable=False),
    Column("moved", Boolean, nullable=False, comment="its rows have left the database"),
    comment="segments of the archive of old decisions",
)

erasures = Table(
    "erasures",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("selection", Text, nullable=False, comment="JSON object: decision, tenant, before"),
    Column("features", Boolean, nullable=False, comment="features too"),
    Column("asked_at", Double, nullable=False),
    Column("finished_at", Double, comment="NULL: it was interrupted, or goes on"),
    Column("erased_to", ID, nullable=False, comment="id of the last decision that was looked at"),
    Column("decisions", LONG, nullable=False, comment="erased in the database"),
    Column("waiting", LONG, nullable=False, comment="of these, closed by it"),
    Column("archived", LONG, nullable=False, comment="erased in the archive"),
    comment="requests to erase texts, and how far each has come",
)
