"""The ledger of each policy: what waits, what was learned, what was closed; its snapshots."""

from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Index, String, Table, Text, UniqueConstraint

from ragbandit.router.storage.sql.tables.columns import ID, LABEL, LONG, metadata

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
    Column("raw_quality", Double, comment="a judge's score, where an earlier release calibrated it"),
    Column("sample_weight", Double, nullable=False, comment="rows that it counts as"),
    Column("disagreement", Double, comment="how far its raters lie apart in quality; NULL: there were not two"),
    Column("decided", BigInteger, comment="decisions made by then, learned or not", info={"since": "0002"}),
    Column(
        "restarts", Text, comment="JSON list: arms that began anew before this row; NULL: none", info={"since": "0002"}
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
