"""The first schema: every table of version 1.0.

The tables stand here once more, as they were then: a later migration changes what this one makes. What each column
means is said in `ragbandit.router.storage.sql.tables` alone; `migrate` writes that into the database as comments.
"""

from alembic import op
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
oldest_code = "0001"

LONG = BigInteger().with_variant(Integer, "sqlite")

first = MetaData()

Table(
    "api_keys",
    first,
    Column("public_id", String(16), primary_key=True),
    Column("secret_sha256", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    Column("role", String(16), nullable=False),
    Column("scopes", Text, nullable=False),
    Column("tenant", String(64)),
    Column("made_at", Double, nullable=False),
    Column("made_by", String(64), nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("last_used_at", Double),
    Column("replaced_by", String(16)),
)
answer_queue = Table(
    "answer_queue",
    first,
    Column("decision_id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("turn", LONG, nullable=False),
    Column("queued_at", Double, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("claimed_by", String(128)),
    Column("claimed_until", Double),
    Index("answer_queue_tenant", "tenant", "turn"),
)
Index(
    "answer_queue_next",
    answer_queue.c.turn,
    answer_queue.c.queued_at,
    sqlite_where=answer_queue.c.claimed_by.is_(None),
    postgresql_where=answer_queue.c.claimed_by.is_(None),
)
Index(
    "answer_queue_claimed",
    answer_queue.c.claimed_by,
    sqlite_where=answer_queue.c.claimed_by.is_not(None),
    postgresql_where=answer_queue.c.claimed_by.is_not(None),
)
Table(
    "archive_segments",
    first,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("root", Text, nullable=False),
    Column("manifest_sha256", String(64), nullable=False),
    Column("seal", String(64), nullable=False),
    Column("decisions", BigInteger, nullable=False),
    Column("spans", Text, nullable=False),
    Column("kept", Text, nullable=False),
    Column("made_before", Double, nullable=False),
    Column("made_at", Double, nullable=False),
    Column("moved", Boolean, nullable=False),
)
Table(
    "arm_hours",
    first,
    Column("policy", String(40), primary_key=True),
    Column("hour", Integer, primary_key=True, autoincrement=False),
    Column("arm", String(64), primary_key=True),
    Column("totals", Text, nullable=False),
)
Table(
    "audit_log",
    first,
    Column("number", LONG, primary_key=True, autoincrement=False),
    Column("made_at", Double, nullable=False),
    Column("actor", String(128), nullable=False),
    Column("action", String(64), nullable=False),
    Column("target", String(128), nullable=False),
    Column("tenant", String(64)),
    Column("facts", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
)
Table(
    "calibration_due",
    first,
    Column("policy", String(40), primary_key=True),
    Column("decision_id", String(64), primary_key=True),
)
Table(
    "calibration_pairs",
    first,
    Column("policy", String(40), primary_key=True),
    Column("number", LONG, primary_key=True, autoincrement=False),
    Column("decision_id", String(64), nullable=False),
    Column("arm", String(64), nullable=False),
    Column("score", Double, nullable=False),
    Column("quality", Double, nullable=False),
    Column("after_seq", LONG, nullable=False),
    UniqueConstraint("policy", "decision_id", name="calibration_pairs_decision_once"),
)
Table(
    "chains",
    first,
    Column("policy", String(40), primary_key=True),
    Column("last_seq", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
)
Table(
    "checkpoints",
    first,
    Column("policy", String(40), primary_key=True),
    Column("version", String(128), primary_key=True),
    Column("algorithm", String(40), nullable=False),
    Column("params", Text, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("chain", String(64), nullable=False),
    Column("encoder_hash", String(64), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("verified_at", Double),
    Column("decided_before", Double),
    Column("decisions", BigInteger),
)
Table(
    "counters",
    first,
    Column("label", String(40), primary_key=True),
    Column("name", String(24), primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("value", LONG, nullable=False),
)
Table(
    "decision_links",
    first,
    Column("kind", String(32), primary_key=True),
    Column("value", String(128), primary_key=True),
    Column("decision_id", String(64), primary_key=True),
    Index("decision_links_decision", "decision_id"),
)
Table(
    "decisions",
    first,
    Column("id", String(64), primary_key=True),
    Column("tenant", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("context", Text, nullable=False),
    Column("budget", Text, nullable=False),
    Column("allowed", Text),
    Column("body_hash", String(43), nullable=False),
    Column("arms", Text, nullable=False),
    Column("pmf", Text, nullable=False),
    Column("scores", Text),
    Column("arm", String(64), nullable=False),
    Column("propensity", Double, nullable=False),
    Column("policy", String(40), nullable=False),
    Column("version", String(128), nullable=False),
    Column("encoder_hash", String(64), nullable=False),
    Column("seed", String(20), nullable=False),
    Column("floor", Double, nullable=False),
    Column("explored", Boolean, nullable=False),
    Column("fault", Text),
    Column("facts", Text, nullable=False),
    Column("run_by", String(16), nullable=False),
    Column("features", LargeBinary),
    Column("made_at", Double, nullable=False),
    Column("session", String(128)),
    Column("api_key", String(16)),
    Column("request", Text),
    Index("decisions_made_at", "made_at"),
    Index(
        "decisions_session",
        "session",
        "tenant",
        "made_at",
        sqlite_where=text("session IS NOT NULL"),
        postgresql_where=text("session IS NOT NULL"),
    ),
)
Table(
    "erasures",
    first,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("selection", Text, nullable=False),
    Column("features", Boolean, nullable=False),
    Column("asked_at", Double, nullable=False),
    Column("finished_at", Double),
    Column("erased_to", String(64), nullable=False),
    Column("decisions", LONG, nullable=False),
    Column("waiting", LONG, nullable=False),
    Column("archived", LONG, nullable=False),
)
Table(
    "held_feedback",
    first,
    Column("policy", String(40), primary_key=True),
    Column("feedback_id", String(64), primary_key=True),
    Column("decision_id", String(64), nullable=False),
    Column("source", String(160), nullable=False),
    Column("reason", String(64), nullable=False),
    Column("held_at", Double, nullable=False),
    Column("released_at", Double),
    Column("released_by", String(128)),
    Index("held_feedback_decision", "decision_id", "policy"),
    Index("held_feedback_source", "policy", "source", "held_at"),
)
Table(
    "import_cursors",
    first,
    Column("source", String(128), primary_key=True),
    Column("position", Text, nullable=False),
    Column("moved_at", Double, nullable=False),
)
Table(
    "judge_days",
    first,
    Column("day", String(10), primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("begun", LONG, nullable=False),
    Column("scored", LONG, nullable=False),
    Column("failed", LONG, nullable=False),
    Column("given_up", LONG, nullable=False),
    Column("expired", LONG, nullable=False),
    Column("suspicious", LONG, nullable=False),
    Column("skipped", LONG, nullable=False),
    Column("prompt_tokens", LONG, nullable=False),
    Column("completion_tokens", LONG, nullable=False),
    Column("dollars", Double, nullable=False),
)
Table(
    "leases",
    first,
    Column("name", String(64), primary_key=True),
    Column("holder", String(128), nullable=False),
    Column("expires_at", Double, nullable=False),
)
Table(
    "policies",
    first,
    Column("label", String(40), primary_key=True),
    Column("algorithm", String(40), nullable=False),
    Column("params", Text, nullable=False),
    Column("encoder_hash", String(64), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("retired_at", Double),
    Column("inheriting", String(16)),
    Column("inherited_to", String(64)),
    Column("inherit_after", String(20)),
)
Table(
    "policy_control",
    first,
    Column("base", String(40), primary_key=True),
    Column("revision", LONG, nullable=False),
    Column("killed", String(16)),
    Column("arm", String(64)),
    Column("actor", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("made_at", Double, nullable=False),
)
Table(
    "policy_verdicts",
    first,
    Column("number", LONG, primary_key=True, autoincrement=False),
    Column("version", String(40), nullable=False),
    Column("state", String(16), nullable=False),
    Column("weight", Double, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("inputs_sha256", String(64), nullable=False),
    Column("facts", Text, nullable=False),
    Column("made_at", Double, nullable=False),
    Index("policy_verdicts_version", "version", "number"),
)
Table(
    "policy_versions",
    first,
    Column("name", String(40), primary_key=True),
    Column("base", String(40), nullable=False),
    Column("label", String(40), nullable=False),
    Column("state", String(16), nullable=False),
    Column("weight", Double, nullable=False),
    Column("former", String(16)),
    Column("changes", Text, nullable=False),
    Column("revision", LONG, nullable=False),
    Column("reason", Text, nullable=False),
    Column("waits_for", Text, nullable=False),
    Column("made_by", String(128), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("since", Double, nullable=False),
    Index("policy_versions_base", "base", "state"),
)
Table(
    "quarantines",
    first,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("source", Text, nullable=False),
    Column("since", Double),
    Column("until", Double),
    Column("policy", String(40), nullable=False),
    Column("new_policy", String(40), nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", String(128), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("lifted_at", Double),
)
Table(
    "reading_positions",
    first,
    Column("reader", String(64), primary_key=True),
    Column("position", Text, nullable=False),
    Column("moved_at", Double, nullable=False),
)
Table(
    "service_secrets",
    first,
    Column("name", String(32), primary_key=True),
    Column("value", String(64), nullable=False),
    Column("made_at", Double, nullable=False),
)
Table(
    "snapshots",
    first,
    Column("version", String(128), primary_key=True),
    Column("policy", String(40), nullable=False),
    Column("algorithm", String(40), nullable=False),
    Column("params", Text, nullable=False),
    Column("params_sha256", String(43), nullable=False),
    Column("last_seq", LONG, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("encoder_hash", String(64), nullable=False),
    Column("made_at", Double, nullable=False),
    Index("snapshots_latest", "policy", "last_seq"),
    Index("snapshots_of_params", "policy", "algorithm", "params_sha256", "last_seq"),
)
Table(
    "waiting",
    first,
    Column("decision_id", String(64), primary_key=True),
    Column("policy", String(40), primary_key=True),
    Column("decided_at", Double, nullable=False),
    Column("run_by", String(16), nullable=False),
    Column("has_outcome", Boolean, nullable=False),
    Column("has_feedback", Boolean, nullable=False),
    Column("has_reward", Boolean, nullable=False),
    Index("waiting_age", "policy", "decided_at", "decision_id"),
    Index("waiting_ready", "policy", "has_feedback", "has_outcome", "has_reward", "decided_at"),
)
Table(
    "cancellations",
    first,
    Column("decision_id", String(64), ForeignKey("decisions.id"), primary_key=True),
    Column("asked_at", Double, nullable=False),
)
Table(
    "closures",
    first,
    Column("policy", String(40), primary_key=True),
    Column("decision_id", String(64), ForeignKey("decisions.id"), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("field", String(64)),
    Column("reason", Text, nullable=False),
    Column("made_at", Double, nullable=False),
)
Table(
    "feedback",
    first,
    Column("id", String(64), primary_key=True),
    Column("decision_id", String(64), ForeignKey("decisions.id"), nullable=False),
    Column("body_hash", String(43), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("value", Text, nullable=False),
    Column("source", String(16), nullable=False),
    Column("late", Boolean, nullable=False),
    Column("received_at", Double, nullable=False),
    Column("rater", String(64)),
    Column("event", String(64)),
    Column("facts", Text),
    Column("api_key", String(16)),
    Index("feedback_decision", "decision_id"),
)
Table(
    "judge_due",
    first,
    Column("decision_id", String(64), ForeignKey("decisions.id"), primary_key=True),
    Column("due_at", Double, nullable=False),
    Column("made_at", Double, nullable=False),
    Column("share", Double, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Index("judge_due_at", "due_at"),
    Index("judge_due_made_at", "made_at"),
)
Table(
    "outcomes",
    first,
    Column("decision_id", String(64), ForeignKey("decisions.id"), primary_key=True),
    Column("body_hash", String(43), nullable=False),
    Column("status", String(16), nullable=False),
    Column("answer", Text),
    Column("trace", LargeBinary),
    Column("cost", Text, nullable=False),
    Column("steps", Double, nullable=False),
    Column("stop_reason", String(64), nullable=False),
    Column("error", Text),
    Column("run_by", String(16), nullable=False),
    Column("made_by", Text, nullable=False),
    Column("made_at", Double, nullable=False),
    Column("sources", Text),
    Index("outcomes_made_at", "made_at"),
)
Table(
    "updates",
    first,
    Column("policy", String(40), primary_key=True),
    Column("seq", LONG, primary_key=True, autoincrement=False),
    Column("decision_id", String(64), ForeignKey("decisions.id"), nullable=False),
    Column("arm", String(64), nullable=False),
    Column("propensity", Double, nullable=False),
    Column("value", Double, nullable=False),
    Column("quality", Double, nullable=False),
    Column("cost", Double, nullable=False),
    Column("weight", Double, nullable=False),
    Column("minimum", Double, nullable=False),
    Column("maximum", Double, nullable=False),
    Column("terms", Text, nullable=False),
    Column("preset", String(32), nullable=False),
    Column("source", String(16), nullable=False),
    Column("feedback_ids", Text, nullable=False),
    Column("feedback_at", Double),
    Column("made_at", Double, nullable=False),
    Column("judged_by", String(16)),
    Column("raw_quality", Double),
    Column("sample_weight", Double),
    Column("disagreement", Double),
    UniqueConstraint("policy", "decision_id", name="updates_decision_once"),
)

#: dialect -> what makes the database refuse to change or delete a row of the audit log
_APPEND_ONLY = {
    "sqlite": [
        f"CREATE TRIGGER audit_log_no_{change.lower()} BEFORE {change} ON audit_log"
        " BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
        for change in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        """CREATE FUNCTION audit_log_refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$""",
        """CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
        FOR EACH STATEMENT EXECUTE FUNCTION audit_log_refuse()""",
    ],
}


def upgrade() -> None:
    first.create_all(op.get_bind())
    for statement in _APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)
    # Alembic's own table of one row: which code may use the database, beside its revision.
    op.add_column("alembic_version", Column("code_from", String(32)))


def downgrade() -> None:
    op.execute("ALTER TABLE alembic_version DROP COLUMN code_from")
    first.drop_all(op.get_bind())
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_log_refuse()")
