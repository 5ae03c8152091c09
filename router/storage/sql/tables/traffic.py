"""Decisions, and what came of them: outcomes, feedback, cancellations, the ids that others know them by."""

from sqlalchemy import (
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from ragbandit.router.storage.sql.tables.columns import ID, LABEL, metadata

__all__ = ["cancellations", "decision_links", "decisions", "feedback", "outcomes", "shared_texts"]

decisions = Table(
    "decisions",
    metadata,
    Column("id", ID, primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("context", Text, nullable=False, comment="JSON object"),
    Column("budget", Text, nullable=False, comment="JSON object"),
    Column("allowed", Text, comment="JSON list of the arms the caller allowed; NULL: all"),
    Column("body_hash", String(64), nullable=False),
    Column(
        "arms",
        Text,
        nullable=False,
        comment="JSON list, order of pmf and scores; or # and the number of a shared text",
    ),
    Column("pmf", Text, nullable=False, comment="JSON list, after the floor"),
    Column("scores", Text, comment="JSON list"),
    Column("arm", String(64), nullable=False),
    Column("propensity", Double, nullable=False),
    Column("policy", LABEL, nullable=False),
    Column("version", String(128), nullable=False),
    Column("encoder_hash", String(64), nullable=False, comment="or # and the number of a shared text"),
    Column("seed", String(20), nullable=False, comment="unsigned 64 bit, decimal"),
    Column("floor", Double, nullable=False),
    Column("explored", Boolean, nullable=False),
    Column("fault", Text, comment="why the policy's pmf was not used"),
    Column("facts", Text, nullable=False, comment="JSON object, what else the policy wants in the log"),
    Column("run_by", String(16), nullable=False, comment="worker or caller"),
    Column("features", LargeBinary, comment="float32 or float16, little endian, see storage/rows/feature_bytes.py"),
    Column("made_at", Double, nullable=False),
    Column(
        "draw",
        LargeBinary,
        comment="body_hash, seed, pmf and scores (storage/rows/draw_bytes.py); then those columns are empty",
    ),
    Column("session", String(128), comment="the conversation"),
    Column("api_key", String(16), comment="public id of the key it came with"),
    Column(
        "request", Text, comment="JSON object: messages, asked, forced, and what else the edge knows; NULL: nothing"
    ),
    Index("decisions_made_at", "made_at"),
)
Index(
    "decisions_session",
    decisions.c.session,
    decisions.c.tenant,
    decisions.c.made_at,
    sqlite_where=decisions.c.session.is_not(None),
    postgresql_where=decisions.c.session.is_not(None),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("decision_id", ID, ForeignKey("decisions.id"), primary_key=True),
    Column("body_hash", String(64), nullable=False),
    Column("status", String(16), nullable=False),
    Column("answer", Text),
    Column("trace", Text, nullable=False, comment="JSON list of events"),
    Column("packed_trace", LargeBinary, comment="the same, compressed (storage/rows/packing.py); then trace is empty"),
    Column("cost", Text, nullable=False, comment="JSON object; names: storage/rows/outcome_rows.py"),
    Column("steps", Double, nullable=False),
    Column("stop_reason", String(64), nullable=False),
    Column("error", Text),
    Column("run_by", String(16), nullable=False),
    Column(
        "made_by",
        Text,
        nullable=False,
        comment="JSON object: params, generator, retriever, budget; or # and the number of a shared text",
    ),
    Column("made_at", Double, nullable=False),
    Column("sources", LargeBinary, comment="packed JSON list: the passages that were shown; NULL: none"),
    Index("outcomes_made_at", "made_at"),
)

cancellations = Table(
    "cancellations",
    metadata,
    Column("decision_id", ID, ForeignKey("decisions.id"), primary_key=True),
    Column("asked_at", Double, nullable=False),
)

feedback = Table(
    "feedback",
    metadata,
    Column("id", ID, primary_key=True),
    Column("decision_id", ID, ForeignKey("decisions.id"), nullable=False),
    Column("body_hash", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("value", Text, nullable=False, comment="JSON number, list of gold answers, or null"),
    Column("source", String(16), nullable=False),
    Column("late", Boolean, nullable=False, comment="its decision was closed before, in the ledger that decided"),
    Column("received_at", Double, nullable=False),
    Column("rater", String(64), comment="which one of the source"),
    Column("event", String(64), comment="name of the event"),
    Column("facts", Text, comment="JSON object, what else the rater said"),
    Column("api_key", String(16), comment="public id of the key it came with"),
    Index("feedback_decision", "decision_id"),
)

decision_links = Table(
    "decision_links",
    metadata,
    Column("kind", String(32), primary_key=True, comment="openwebui_message, trace, span, run, ..."),
    Column("value", String(128), primary_key=True, comment="the id there"),
    Column("decision_id", ID, primary_key=True, comment="it may be in the archive"),
    Index("decision_links_decision", "decision_id"),
)

shared_texts = Table(
    "shared_texts",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("sha256", String(64), nullable=False),
    Column("text", Text, nullable=False),
    UniqueConstraint("sha256", name="shared_texts_once"),
)
