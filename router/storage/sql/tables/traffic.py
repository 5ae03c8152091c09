"""Decisions, and what came of them: outcomes, feedback, cancellations, the ids that others know them by."""

from typing import Any, Final

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
)

from ragbandit.router.storage.sql.tables.ledger import ID, LABEL, LONG, metadata

_IN_0003: Final = {"since": "0003"}
_IN_0008: Final = {"since": "0008"}


def _partial_index(name: str, *columns: Column[Any], where: ColumnElement[bool], **more: Any) -> None:
    """Give the columns' table an index of the rows that the condition holds for."""
    Index(name, *columns, sqlite_where=where, postgresql_where=where, **more)


decisions = Table(
    "decisions",
    metadata,
    Column("id", ID, primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("text", Text, nullable=False, comment="the question"),
    Column("context", Text, nullable=False, comment="JSON object, as the caller sent it"),
    Column("budget", Text, nullable=False, comment="JSON object: the caps that were given"),
    Column("allowed", Text, comment="JSON list of the arms the caller allowed; NULL: all"),
    Column("body_hash", String(43), nullable=False, comment="sha256 of the request, by which a repetition is known"),
    Column("arms", Text, nullable=False, comment="JSON list: the arms on offer, in the order of pmf and scores"),
    Column("pmf", Text, nullable=False, comment="JSON list: probability of each arm, after the floor"),
    Column("scores", Text, comment="JSON list: the policy's value for each arm; NULL: it has none"),
    Column("arm", String(64), nullable=False, comment="the arm that was drawn"),
    Column("propensity", Double, nullable=False, comment="its probability"),
    Column("policy", LABEL, nullable=False, comment="label of the ledger that decided"),
    Column("version", String(128), nullable=False, comment="the snapshot that decided"),
    Column("encoder_hash", String(64), nullable=False, comment="sha256 of the encoder that made the features"),
    Column(
        "seed",
        String(20),
        nullable=False,
        comment="of the draw, made of the id and the secret draws: unsigned 64 bit, decimal",
    ),
    Column("floor", Double, nullable=False, comment="least probability of an arm"),
    Column("explored", Boolean, nullable=False, comment="another arm was at least as likely"),
    Column("fault", Text, comment="why the policy's pmf was not used"),
    Column("facts", Text, nullable=False, comment="JSON object, what else the policy wants in the log"),
    Column("run_by", String(16), nullable=False, comment="who runs the arm: worker or caller"),
    Column("features", LargeBinary, comment="float32 or float16, little endian, see storage/rows/feature_bytes.py"),
    Column("made_at", Double, nullable=False, comment="seconds since the epoch, as every time here"),
    Column("session", String(128), comment="the conversation"),
    Column("api_key", String(16), comment="public id of the key it came with"),
    Column(
        "request", Text, comment="JSON object: messages, asked, forced, and what else the edge knows; NULL: nothing"
    ),
    Column(
        "cost_weight", Double, comment="weight of cost that it was served at; NULL: the reward setting's", info=_IN_0003
    ),
    Column(
        "price",
        String(64),
        comment="weight of cost that the caller wanted: a name or a number; NULL: none",
        info=_IN_0003,
    ),
    Index("decisions_made_at", "made_at"),
    comment="every decision, with all that its draw was made of; never updated but to erase texts",
)
_partial_index(
    "decisions_session", *decisions.c["session", "tenant", "made_at"], where=decisions.c.session.is_not(None)
)

answer_queue = Table(
    "answer_queue",
    metadata,
    Column("decision_id", ID, primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("turn", LONG, nullable=False, comment="the lowest is next"),
    Column("queued_at", Double, nullable=False, comment="when its decision was made"),
    Column("tries", Integer, nullable=False, comment="runs that have begun"),
    Column("claimed_by", String(128), comment="the process that runs it; NULL: it waits"),
    Column("claimed_until", Double, comment="by the clock of the database"),
    Column("arm", String(64), comment="that was drawn; NULL: queued by an older release", info={"since": "0004"}),
    Column("chat", Text, comment="JSON object: a chat as it came, for an arm that passes it on", info=_IN_0008),
    comment="decisions that wait for a worker of ours, or are run by one; a row leaves with the outcome",
)
_partial_index("answer_queue_next", *answer_queue.c["turn", "queued_at"], where=answer_queue.c.claimed_by.is_(None))
_partial_index("answer_queue_claimed", answer_queue.c.claimed_by, where=answer_queue.c.claimed_by.is_not(None))
Index("answer_queue_tenant", answer_queue.c.tenant, answer_queue.c.turn)

outcomes = Table(
    "outcomes",
    metadata,
    Column("decision_id", ID, ForeignKey("decisions.id"), primary_key=True),
    Column("body_hash", String(43), nullable=False, comment="sha256 of what was reported"),
    Column("status", String(16), nullable=False, comment="answered, failed, budget or cancelled"),
    Column("answer", Text),
    Column("trace", LargeBinary, comment="JSON list of events, compressed (storage/rows/trace_bytes.py)"),
    Column("cost", Text, nullable=False, comment="JSON object; what is left out is 0"),
    Column("steps", Double, nullable=False, comment="rounds of search and generation"),
    Column("stop_reason", String(64), nullable=False),
    Column("error", Text, comment="the message of the failure"),
    Column("run_by", String(16), nullable=False, comment="who ran the arm: worker or caller"),
    Column("made_by", Text, nullable=False, comment="JSON object: params, generator, retriever, budget"),
    Column("made_at", Double, nullable=False),
    Column("sources", Text, comment="JSON list: the passages that were shown; NULL: none"),
    Column("reply", Text, comment="JSON object: what a model replied beside the text", info=_IN_0008),
    Column("call", String(43), comment="sha256 of tenant and first call of a tool in the reply", info=_IN_0008),
    Index("outcomes_made_at", "made_at"),
    comment="what came of a decision: the answer, and what it cost; one per decision",
)

_partial_index("outcomes_call", outcomes.c.call, where=outcomes.c.call.is_not(None), info=_IN_0008)

cancellations = Table(
    "cancellations",
    metadata,
    Column("decision_id", ID, ForeignKey("decisions.id"), primary_key=True),
    Column("asked_at", Double, nullable=False),
    comment="decisions that callers asked to cancel",
)

feedback = Table(
    "feedback",
    metadata,
    Column("id", ID, primary_key=True),
    Column("decision_id", ID, ForeignKey("decisions.id"), nullable=False),
    Column("body_hash", String(43), nullable=False),
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
    Index("feedback_rater", "rater", "received_at", info={"since": "0006"}),
    comment="labels, ratings, rewards and events, as they came in",
)

counters = Table(
    "counters",
    metadata,
    Column("label", LABEL, primary_key=True, comment="empty: of the whole store; spent:HASH: of a tenant or a key"),
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
    Column("reader", String(128), primary_key=True, comment="arm_hours:LABEL, ..."),
    Column("position", Text, nullable=False, comment="JSON object: up to where it has read"),
    Column("moved_at", Double, nullable=False),
    comment="up to where readers of the tables have come",
)
