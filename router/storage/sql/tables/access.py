"""Who may do what, who did what, and the secrets and leases of the service."""

from sqlalchemy import Column, Double, Index, String, Table, Text

from ragbandit.router.storage.sql.tables.ledger import LABEL, LONG, metadata

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
    Column("name", String(32), primary_key=True, comment="draws: what seeds of draws are made with"),
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


policy_versions = Table(
    "policy_versions",
    metadata,
    Column("name", LABEL, primary_key=True),
    Column("base", LABEL, nullable=False, comment="policy.label of the configuration that it is a version of"),
    Column("label", LABEL, nullable=False, comment="its own ledger"),
    Column("state", String(16), nullable=False),
    Column("weight", Double, nullable=False, comment="share of its pmf in what is served"),
    Column("former", String(16), comment="the state that a paused one comes back to"),
    Column("changes", Text, nullable=False, comment="JSON object: settings that differ from the configuration"),
    Column("revision", LONG, nullable=False, comment="changes of this row"),
    Column("reason", Text, nullable=False),
    Column("waits_for", Text, nullable=False),
    Column("made_by", String(128), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("since", Double, nullable=False, comment="when its state or weight changed last"),
    Index("policy_versions_base", "base", "state"),
    comment="versions of a policy that roll out by evidence",
)

policy_verdicts = Table(
    "policy_verdicts",
    metadata,
    Column("number", LONG, primary_key=True, autoincrement=False, comment="1, 2, 3 ..."),
    Column("version", LABEL, nullable=False),
    Column("state", String(16), nullable=False),
    Column("weight", Double, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("inputs_sha256", String(64), nullable=False),
    Column("facts", Text, nullable=False, comment="JSON object"),
    Column("made_at", Double, nullable=False),
    Index("policy_verdicts_version", "version", "number"),
    comment="what each look at the evidence came to",
)

policy_control = Table(
    "policy_control",
    metadata,
    Column("base", LABEL, primary_key=True, comment="policy.label of the configuration"),
    Column("revision", LONG, nullable=False, comment="rises with every change of a version or of the switch"),
    Column("killed", String(16), comment="arm or champion; NULL: versions decide"),
    Column("arm", String(64)),
    Column("actor", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("made_at", Double, nullable=False),
    comment="the kill switch, and a number that rises with every change of a version",
)
