"""The schema, once: `migrations/` builds it, the store reads and writes it.

decisions, feedback bodies and updates are never changed after they are written. `waiting` holds a row for every
decision that a policy has not done with; the row leaves in the same transaction that writes the decision's
update (learned, defaulted) or closure (closed, quarantined). That is promise 7: a decision is in one place.
"""

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
)

__all__ = [
    "OLDEST_REVISION",
    "SCHEMA_REVISION",
    "api_keys",
    "archive_segments",
    "arm_hours",
    "audit_log",
    "calibration_due",
    "calibration_pairs",
    "cancellations",
    "chains",
    "checkpoints",
    "closures",
    "counters",
    "decision_links",
    "decisions",
    "erasures",
    "feedback",
    "held_feedback",
    "import_cursors",
    "judge_days",
    "judge_due",
    "leases",
    "metadata",
    "outcomes",
    "policies",
    "policy_control",
    "policy_verdicts",
    "policy_versions",
    "quarantines",
    "reading_positions",
    "service_secrets",
    "shared_texts",
    "snapshots",
    "updates",
    "waiting",
]

#: the migration this code was written for
SCHEMA_REVISION = "0013"
#: the oldest schema that this code can also use, so that hosts can be upgraded one by one before `ragbandit migrate`
OLDEST_REVISION = "0012"

metadata = MetaData()

ID = String(64)
LABEL = String(40)
#: 64 bit; every integer of SQLite is, and its migrations need not copy a table for it
LONG = BigInteger().with_variant(Integer, "sqlite")

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

policies = Table(
    "policies",
    metadata,
    Column("label", LABEL, primary_key=True),
    Column("algorithm", String(40), nullable=False),
    Column("params", Text, nullable=False, comment="JSON object"),
    Column("encoder_hash", String(64), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("retired_at", Double, comment="no decision waits for it; NULL: in use"),
    Column("inheriting", String(16), comment="insert or again; NULL: it has every decision"),
    Column("inherited_to", ID, comment="id of the last decision of that walk"),
    Column("inherit_after", String(20), comment="transactions up to this one have to end first; NULL: not known yet"),
)

waiting = Table(
    "waiting",
    metadata,
    Column("decision_id", ID, primary_key=True),
    Column("policy", LABEL, primary_key=True),
    Column("decided_at", Double, nullable=False),
    Column("run_by", String(16), nullable=False),
    Column("has_outcome", Boolean, nullable=False),
    Column("has_feedback", Boolean, nullable=False),
    Column("has_reward", Boolean, nullable=False, comment="a raw reward is among the feedback"),
    Index("waiting_ready", "policy", "has_feedback", "has_outcome", "has_reward", "decided_at"),
    Index("waiting_age", "policy", "decided_at", "decision_id"),
    Index("waiting_unanswered", "run_by", "has_outcome", "decided_at"),
)

updates = Table(
    "updates",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("seq", LONG, primary_key=True, autoincrement=False),
    Column("decision_id", ID, ForeignKey("decisions.id"), nullable=False),
    Column("arm", String(64), nullable=False),
    Column("propensity", Double, nullable=False),
    Column("value", Double, nullable=False),
    Column("quality", Double, nullable=False),
    Column("cost", Double, nullable=False),
    Column("weight", Double, nullable=False),
    Column("minimum", Double, nullable=False),
    Column("maximum", Double, nullable=False),
    Column("terms", Text, nullable=False, comment="JSON object: price per unit of cost"),
    Column("preset", String(32), nullable=False),
    Column("source", String(16), nullable=False),
    Column("feedback_ids", Text, nullable=False, comment="JSON list"),
    Column("feedback_at", Double, comment="when the last feedback that made it came in"),
    Column("made_at", Double, nullable=False),
    Column("judged_by", String(16), comment="label, human, judge or event"),
    Column("raw_quality", Double, comment="before calibration; NULL: it was not calibrated"),
    Column("sample_weight", Double, comment="rows that it counts as; NULL: one"),
    Column("disagreement", Double, comment="how far its raters lie apart in quality; NULL: there were not two"),
    UniqueConstraint("policy", "decision_id", name="updates_decision_once"),
)

closures = Table(
    "closures",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("decision_id", ID, ForeignKey("decisions.id"), primary_key=True),
    Column("state", String(16), nullable=False, comment="closed or quarantined"),
    Column("field", String(64)),
    Column("reason", Text, nullable=False),
    Column("made_at", Double, nullable=False),
)

shared_texts = Table(
    "shared_texts",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("sha256", String(64), nullable=False),
    Column("text", Text, nullable=False),
    UniqueConstraint("sha256", name="shared_texts_once"),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("version", String(128), primary_key=True),
    Column("policy", LABEL, nullable=False),
    Column("algorithm", String(40), nullable=False),
    Column("params", Text, nullable=False, comment="JSON object"),
    Column("params_sha256", String(64), nullable=False, comment="of params, which may be too long for an index"),
    Column("last_seq", LONG, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("encoder_hash", String(64), nullable=False),
    Column("made_at", Double, nullable=False),
    Index("snapshots_latest", "policy", "last_seq"),
    Index("snapshots_of_params", "policy", "algorithm", "params_sha256", "last_seq"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("version", String(128), primary_key=True),
    Column("algorithm", String(40), nullable=False),
    Column("params", Text, nullable=False, comment="JSON object"),
    Column("last_seq", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False, comment="of the policy, as in snapshots"),
    Column("chain", String(64), nullable=False, comment="of the updates up to last_seq"),
    Column("encoder_hash", String(64), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("verified_at", Double, comment="when a verify that found no fault got here; NULL: none has"),
    Column("decided_before", Double, comment="that verify checked every decision made before this time"),
    Column("decisions", BigInteger, comment="their number"),
)

chains = Table(
    "chains",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("last_seq", BigInteger, nullable=False, comment="the last update that is in the chain"),
    Column("sha256", String(64), nullable=False, comment="over every update up to there, each with what came before"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(128), nullable=False),
    Column("expires_at", Double, nullable=False),
)

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
)

counters = Table(
    "counters",
    metadata,
    Column("label", LABEL, primary_key=True, comment="empty: of the whole store"),
    Column("name", String(24), primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False, comment="summed when read"),
    Column("value", LONG, nullable=False),
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
)

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
)

calibration_due = Table(
    "calibration_due",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("decision_id", ID, primary_key=True, comment="late feedback has made it a pair, maybe"),
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
)

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
)

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
    Index("held_feedback_decision", "decision_id"),
)

quarantines = Table(
    "quarantines",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("selection", Text, nullable=False, comment="JSON object: source, since, until"),
    Column("policy", LABEL, nullable=False, comment="the ledger that had learned from it"),
    Column("new_policy", LABEL, nullable=False, comment="the ledger that is learned without it"),
    Column("reason", Text, nullable=False),
    Column("actor", String(128), nullable=False),
    Column("made_at", Double, nullable=False),
    Column("lifted_at", Double),
)

service_secrets = Table(
    "service_secrets",
    metadata,
    Column("name", String(32), primary_key=True, comment="feedback: what feedback tokens are signed with"),
    Column("value", String(64), nullable=False, comment="hex digits"),
    Column("made_at", Double, nullable=False),
)

decision_links = Table(
    "decision_links",
    metadata,
    Column("kind", String(32), primary_key=True, comment="openwebui_message, trace, span, run, ..."),
    Column("value", String(128), primary_key=True, comment="the id there"),
    Column("decision_id", ID, primary_key=True, comment="it may be in the archive"),
    Index("decision_links_decision", "decision_id"),
)

import_cursors = Table(
    "import_cursors",
    metadata,
    Column("source", String(128), primary_key=True, comment="langfuse:HOST, openwebui:HOST, ..."),
    Column("position", Text, nullable=False, comment="JSON object: where the next import begins"),
    Column("moved_at", Double, nullable=False),
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
)

arm_hours = Table(
    "arm_hours",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("hour", Integer, primary_key=True, autoincrement=False, comment="hours since the epoch, UTC"),
    Column("arm", String(64), primary_key=True),
    Column("totals", Text, nullable=False, comment="JSON object: counts and sums of storage/arm_hours.py"),
)

reading_positions = Table(
    "reading_positions",
    metadata,
    Column("reader", String(64), primary_key=True, comment="arm_hours:LABEL, ..."),
    Column("position", Text, nullable=False, comment="JSON object: up to where it has read"),
    Column("moved_at", Double, nullable=False),
)
