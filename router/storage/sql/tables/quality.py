"""How feedback is judged: by models, by calibration against people, by who gave it."""

from sqlalchemy import Column, Double, ForeignKey, Index, Integer, String, Table, Text, UniqueConstraint, text

from ragbandit.router.storage.sql.tables.columns import ID, LABEL, LONG, metadata

calibration_pairs = Table(
    "calibration_pairs",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("number", LONG, primary_key=True, autoincrement=False, comment="1, 2, 3 ... in the order found"),
    Column("decision_id", ID, nullable=False),
    Column("arm", String(64), nullable=False),
    Column("score", Double, nullable=False, comment="the model's"),
    Column("quality", Double, nullable=False, comment="what people made of it"),
    Column("after_seq", LONG, nullable=False, comment="updates with a larger seq are calibrated with it"),
    UniqueConstraint("policy", "decision_id", name="calibration_pairs_decision_once"),
    comment="decisions that a model and a person judged: a judge is calibrated by them",
)

calibration_due = Table(
    "calibration_due",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("decision_id", ID, primary_key=True, comment="late feedback has made it a pair, maybe"),
    comment="decisions that may have become such pairs",
)

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

_HELD = text("released_at IS NULL")

held_feedback = Table(
    "held_feedback",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("feedback_id", ID, primary_key=True),
    Column("decision_id", ID, nullable=False),
    Column("source", String(160), nullable=False, comment="key:PUBLIC_ID, tenant:NAME or rater:NAME"),
    Column("reason", String(64), nullable=False),
    Column("held_at", Double, nullable=False),
    Column("released_at", Double, comment="NULL: it is held"),
    Column("released_by", String(128)),
    Index("held_feedback_source", "policy", "source", "held_at"),
    Index("held_feedback_decision", "decision_id", "policy"),
    Index("held_feedback_held", "policy", "held_at", sqlite_where=_HELD, postgresql_where=_HELD),
    comment="feedback that is not learned until an operator releases it",
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
