"""How answers are scored, and whose feedback is left out."""

from sqlalchemy import Column, Double, ForeignKey, Index, Integer, String, Table, Text

from ragbandit.router.storage.sql.tables.columns import ID, LABEL, LONG, metadata

judge_due = Table(
    "judge_due",
    metadata,
    Column("decision_id", ID, ForeignKey("decisions.id"), primary_key=True),
    Column("due_at", Double, nullable=False, comment="no judge begins before; while one works, when it is given up"),
    Column("made_at", Double, nullable=False, comment="when its outcome came in"),
    Column("share", Double, nullable=False, comment="the share of decisions that were judged then"),
    Column("attempts", Integer, nullable=False, comment="begun, without those that a failing server ended"),
    Column("failures", Integer, nullable=False, comment="tries that a failing server ended"),
    Index("judge_due_at", "due_at"),
    Index("judge_due_made_at", "made_at"),
    comment="decisions that wait for the judge",
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

check_due = Table(
    "check_due",
    metadata,
    Column("decision_id", ID, ForeignKey("decisions.id"), primary_key=True),
    Column("due_at", Double, nullable=False, comment="no check begins before; while one runs, when it is given up"),
    Column("made_at", Double, nullable=False, comment="when its outcome came in"),
    Column("attempts", Integer, nullable=False, comment="begun"),
    Index("check_due_at", "due_at"),
    info={"since": "0004"},
    comment="decisions that wait for the check of reward.check",
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
