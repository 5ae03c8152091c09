"""How answers are scored, and whose feedback is left out."""

from sqlalchemy import Column, Double, ForeignKey, Index, Integer, String, Table, Text

from ragbandit.router.storage.sql.tables.columns import ID, LABEL, LONG, metadata

jobs = Table(
    "jobs",
    metadata,
    Column("kind", String(16), primary_key=True, comment="who works on it: judge or check"),
    Column("key", ID, ForeignKey("decisions.id"), primary_key=True, comment="the decision"),
    Column("made_at", Double, nullable=False, comment="when its outcome came in"),
    Column("due_at", Double, nullable=False, comment="nobody begins before; while somebody works, when the claim ends"),
    Column("attempts", Integer, nullable=False, comment="begun, without those that a failing server ended"),
    Column(
        "facts", Text, nullable=False, comment="JSON object: of the judge, the share judged and failures of its server"
    ),
    Index("jobs_due_at", "kind", "due_at"),
    Index("jobs_made_at", "kind", "made_at"),
    info={"since": "0006"},
    comment="decisions that wait for the judge or for the check of reward.check",
)

judge_days = Table(
    "judge_days",
    metadata,
    Column("day", String(10), primary_key=True, comment="UTC"),
    Column("shard", Integer, primary_key=True, autoincrement=False, comment="0: moved by judges; summed when read"),
    Column("begun", LONG, nullable=False, comment="judgements that began"),
    Column("scored", LONG, nullable=False, comment="scores stored"),
    Column("failed", LONG, nullable=False, comment="tries that gave no score"),
    Column("given_up", LONG, nullable=False, comment="decisions that were tried too often"),
    Column("expired", LONG, nullable=False, comment="decisions that waited too long"),
    Column("suspicious", LONG, nullable=False, comment="decisions with a text that addresses the judge"),
    Column("skipped", LONG, nullable=False, comment="decisions not judged, since too many waited"),
    Column("prompt_tokens", LONG, nullable=False),
    Column("completion_tokens", LONG, nullable=False),
    Column("dollars", Double, nullable=False),
    comment="what the judge did and cost by day",
)

quarantines = Table(
    "quarantines",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("source", Text, nullable=False, comment="key:PUBLIC_ID, tenant:NAME, role:NAME or rater:NAME"),
    Column("since", Double, comment="feedback that came in then or later; NULL: no bound"),
    Column("until", Double, comment="feedback that came in before; NULL: no bound"),
    Column("label", LABEL, nullable=False, comment="the ledger that had learned from it"),
    Column("new_label", LABEL, nullable=False, comment="the ledger that is learned without it"),
    Column("reason", Text, nullable=False),
    Column("actor", String(128), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("lifted_at", Double),
    comment="feedback that was taken out of a ledger, which was learned anew without it",
)
