"""The schema, once: `migrations/` builds it, the store reads and writes it.

decisions, feedback bodies and updates are never changed after they are written. `waiting` holds a row for every
decision that a policy has not done with; the row leaves in the same transaction that writes the decision's
update (learned, defaulted) or closure (closed, quarantined). That is promise 7: a decision is in one place.
"""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
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

#: the migration this code was written for
SCHEMA_REVISION = "0010"
#: the oldest schema that this code can also use: migrations up to it run before its processes start, later ones
#: may wait until all processes of the previous release have ended
OLDEST_REVISION = "0009"

metadata = MetaData()

ID = String(64)
LABEL = String(40)
#: 64 bit; every integer of SQLite is, and its migrations need not copy a table for it
LONG = BigInteger().with_variant(Integer, "sqlite")


# The ledger of each policy: what waits, what was learned, what was closed; its snapshots.

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
    Column("diagnosis", Text, comment="JSON object: how far the policy has learned", info={"since": "0002"}),
    Column("arms", Text, comment="JSON object: what it knows of changes of arms", info={"since": "0002"}),
    Column(
        "frontier", Text, comment="JSON object: quality and cost of the policy at each weight", info={"since": "0003"}
    ),
    Column("encoder", Text, comment="JSON object: model, and where its weights came from", info={"since": "0004"}),
    comment="the ledgers: each policy's name, params and encoder, and how far it has inherited older decisions",
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
    comment="decisions that a ledger has not learned or closed yet; a row leaves when it has",
)

updates = Table(
    "updates",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("seq", LONG, primary_key=True, autoincrement=False, comment="1, 2, 3 ... of this policy, without a gap"),
    Column("decision_id", ID, nullable=False),
    Column("arm", String(64), nullable=False, comment="the arm that was drawn"),
    Column("propensity", Double, nullable=False, comment="its probability"),
    Column("value", Double, nullable=False, comment="the reward: quality - weight * cost, within its bounds"),
    Column("quality", Double, nullable=False),
    Column("cost", Double, nullable=False, comment="the sum of what the terms price"),
    Column("weight", Double, nullable=False, comment="of the cost (lambda)"),
    Column("minimum", Double, nullable=False, comment="bound of the value"),
    Column("maximum", Double, nullable=False, comment="bound of the value"),
    Column("terms", Text, nullable=False, comment="JSON object: price per unit of cost"),
    Column("preset", String(32), nullable=False, comment="measure of the quality, rating, mixed or reward"),
    Column("source", String(16), nullable=False, comment="explicit (feedback) or default"),
    Column("feedback_ids", Text, nullable=False, comment="JSON list"),
    Column("feedback_at", Double, comment="when the last feedback that made it came in"),
    Column("made_at", Double, nullable=False),
    Column("judged_by", String(16), comment="label, human, judge or event"),
    Column("raw_quality", Double, comment="not used since 0007"),
    Column("surrogates", Text, comment="JSON object: quality by judge and event too", info={"since": "0007"}),
    Column("sample_weight", Double, nullable=False, comment="rows that it counts as"),
    Column("disagreement", Double, comment="how far its raters lie apart in quality; NULL: there were not two"),
    Column("decided", BigInteger, comment="decisions made by then, learned or not", info={"since": "0002"}),
    Column(
        "restarts",
        Text,
        comment="JSON list: arms that were restarted before this row; NULL: none",
        info={"since": "0002"},
    ),
    UniqueConstraint("policy", "decision_id", name="updates_decision_once"),
    comment="the ledger: what each policy learned, in order and without a gap; never updated",
)

closures = Table(
    "closures",
    metadata,
    Column("policy", LABEL, primary_key=True),
    Column("decision_id", ID, primary_key=True),
    Column("state", String(16), nullable=False, comment="closed or quarantined"),
    Column("field", String(64)),
    Column("reason", Text, nullable=False),
    Column("made_at", Double, nullable=False),
    comment="decisions that a ledger closed without learning from them, and why",
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("version", String(128), primary_key=True),
    Column("policy", LABEL, nullable=False),
    Column("algorithm", String(40), nullable=False),
    Column("params", Text, nullable=False, comment="JSON object"),
    Column("params_sha256", String(43), nullable=False, comment="of params, which may be too long for an index"),
    Column("last_seq", LONG, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("encoder_hash", String(64), nullable=False),
    Column("made_at", Double, nullable=False),
    Index("snapshots_latest", "policy", "last_seq"),
    Index("snapshots_of_params", "policy", "algorithm", "params_sha256", "last_seq"),
    comment="files of policies: a cache of the ledger",
)


jobs = Table(
    "jobs",
    metadata,
    Column("kind", String(16), primary_key=True, comment="who works on it: judge, check or label (a person)"),
    Column("decision_id", ID, primary_key=True),
    Column("made_at", Double, nullable=False, comment="when its outcome came in"),
    Column("due_at", Double, nullable=False, comment="nobody begins before"),
    Column("tries", Integer, nullable=False, comment="begun, without those that a failing server ended"),
    Column("claimed_by", String(128), comment="the process that works on it; NULL: it waits"),
    Column("claimed_until", Double, comment="by the clock of the database"),
    Column(
        "facts", Text, nullable=False, comment="JSON object: of the judge, the share judged and failures of its server"
    ),
    Index("jobs_due_at", "kind", "due_at"),
    Index("jobs_made_at", "kind", "made_at"),
    Index("jobs_claimed", "kind", "claimed_by"),
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
    comment="feedback that was taken out of a ledger, which was learned again without it",
)


# Who may do what, who did what, and the secrets and leases of the service.

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


# Decisions, and what came of them: outcomes, feedback, cancellations, the ids that others know them by.

_IN_0003: Final = {"since": "0003"}
_IN_0008: Final = {"since": "0008"}
_IN_0009: Final = {"since": "0009"}


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
    Column("features", LargeBinary, comment="float32 or float16, little endian, see storage/rows/conversion.py"),
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
    Column("trace", LargeBinary, comment="JSON list of events, compressed (storage/rows/outcome_rows.py)"),
    Column("cost", Text, nullable=False, comment="JSON object; what is left out is 0"),
    Column("steps", Double, nullable=False, comment="rounds of search and generation"),
    Column("stop_reason", String(64), nullable=False),
    Column("error", Text, comment="the message of the failure"),
    Column("run_by", String(16), nullable=False, comment="who ran the arm: worker or caller"),
    Column("made_by", Text, nullable=False, comment="JSON object: params, generator, retriever, budget"),
    Column("made_at", Double, nullable=False),
    Column("sources", Text, comment="JSON list: the passages that were shown; NULL: none"),
    Column("reply", Text, comment="JSON object: what a model replied beside the text", info=_IN_0008),
    Column(
        "call", String(43), comment="sha256 of caller, conversation and calls of tools, see tool_turns", info=_IN_0008
    ),
    Column("taken_by", ID, comment="the decision that has the results of these calls; NULL: none yet", info=_IN_0009),
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
