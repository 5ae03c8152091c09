"""Versions of a policy, the verdicts on them, and the switch that stands above them."""

from sqlalchemy import Column, Double, Index, String, Table, Text

from ragbandit.router.storage.sql.tables.columns import LABEL, LONG, metadata

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
