"""Who may do what, who did what, and the secrets and leases of the service."""

from sqlalchemy import Column, Double, String, Table, Text

from ragbandit.router.storage.sql.tables.columns import LONG, metadata

api_keys = Table(
    "api_keys",
    metadata,
    Column("public_id", String(16), primary_key=True),
    Column("secret_sha256", String(64), nullable=False, comment="hex digits, of the secret part"),
    Column("name", String(64), nullable=False),
    Column("role", String(16), nullable=False, comment="reader, app, rater, worker, operator, admin"),
    Column("scopes", Text, nullable=False, comment="JSON object: what the key is narrowed to"),
    Column("tenant", String(64), comment="NULL: of every tenant"),
    Column("made_at", Double, nullable=False),
    Column("made_by", String(64), nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("last_used_at", Double, comment="at most a minute old"),
    Column("replaced_by", String(16), comment="public id of the key that it was rotated to"),
    comment="keys of callers; their secrets as sha256 alone",
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("number", LONG, primary_key=True, autoincrement=False, comment="1, 2, 3 ..."),
    Column("made_at", Double, nullable=False),
    Column("actor", String(128), nullable=False, comment="key:PUBLIC_ID, or cli:USER@HOST"),
    Column("action", String(64), nullable=False, comment="key.create, feedback.quarantine, ..."),
    Column("target", String(128), nullable=False, comment="what it was done to"),
    Column("tenant", String(64)),
    Column("facts", Text, nullable=False, comment="JSON object"),
    Column("sha256", String(64), nullable=False, comment="of the row before and of this one"),
    comment="who changed what: append-only, each row sealed with the one before",
)

service_secrets = Table(
    "service_secrets",
    metadata,
    Column(
        "name",
        String(32),
        primary_key=True,
        comment="draws: what seeds of draws are made with",
    ),
    Column("value", String(64), nullable=False, comment="hex digits"),
    Column("made_at", Double, nullable=False),
    comment="secrets that the service made for itself",
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(128), nullable=False),
    Column("expires_at", Double, nullable=False),
    comment="which process does what only one may do",
)
