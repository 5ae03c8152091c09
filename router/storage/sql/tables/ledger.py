"""The ledger of each policy: what waits, what was learned, what was closed; its snapshots."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

ID = String(64)
LABEL = String(40)
#: 64 bit; every integer of SQLite is, and its migrations need not copy a table for it
LONG = BigInteger().with_variant(Integer, "sqlite")


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
    Column("decision_id", ID, ForeignKey("decisions.id"), nullable=False),
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
    Column("decision_id", ID, ForeignKey("decisions.id"), primary_key=True),
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
    Column("kind", String(16), primary_key=True, comment="who works on it: judge or check"),
    Column("decision_id", ID, ForeignKey("decisions.id"), primary_key=True),
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
