"""The first schema: decisions, outcomes, feedback, the ledger and its helpers."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None
oldest_code = "0001"


def upgrade() -> None:
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("context", sa.Text(), nullable=False, comment="JSON object"),
        sa.Column("budget", sa.Text(), nullable=False, comment="JSON object"),
        sa.Column("allowed", sa.Text(), nullable=True, comment="JSON list of the arms the caller allowed; NULL: all"),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("arms", sa.Text(), nullable=False, comment="JSON list, order of pmf and scores"),
        sa.Column("pmf", sa.Text(), nullable=False, comment="JSON list, after the floor"),
        sa.Column("scores", sa.Text(), nullable=True, comment="JSON list"),
        sa.Column("arm", sa.String(length=64), nullable=False),
        sa.Column("propensity", sa.Double(), nullable=False),
        sa.Column("policy", sa.String(length=40), nullable=False),
        sa.Column("version", sa.String(length=128), nullable=False),
        sa.Column("encoder_hash", sa.String(length=64), nullable=False),
        sa.Column("seed", sa.String(length=20), nullable=False, comment="unsigned 64 bit, decimal"),
        sa.Column("floor", sa.Double(), nullable=False),
        sa.Column("explored", sa.Boolean(), nullable=False),
        sa.Column("fault", sa.Text(), nullable=True, comment="why the policy's pmf was not used"),
        sa.Column("facts", sa.Text(), nullable=False, comment="JSON object, what else the policy wants in the log"),
        sa.Column("run_by", sa.String(length=16), nullable=False, comment="worker or caller"),
        sa.Column("features", sa.LargeBinary(), nullable=True, comment="float32, little endian"),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("decisions_made_at", "decisions", ["made_at"], unique=False)
    op.create_index("decisions_version", "decisions", ["version", "id"], unique=False)
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=128), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "policies",
        sa.Column("label", sa.String(length=40), nullable=False),
        sa.Column("algorithm", sa.String(length=40), nullable=False),
        sa.Column("params", sa.Text(), nullable=False, comment="JSON object"),
        sa.Column("encoder_hash", sa.String(length=64), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("label"),
    )
    op.create_table(
        "snapshots",
        sa.Column("version", sa.String(length=128), nullable=False),
        sa.Column("policy", sa.String(length=40), nullable=False),
        sa.Column("algorithm", sa.String(length=40), nullable=False),
        sa.Column("params", sa.Text(), nullable=False, comment="JSON object"),
        sa.Column("last_seq", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("encoder_hash", sa.String(length=64), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("version"),
    )
    op.create_index("snapshots_latest", "snapshots", ["policy", "last_seq"], unique=False)
    op.create_table(
        "waiting",
        sa.Column("decision_id", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.String(length=40), nullable=False),
        sa.Column("decided_at", sa.Double(), nullable=False),
        sa.Column("run_by", sa.String(length=16), nullable=False),
        sa.Column("has_outcome", sa.Boolean(), nullable=False),
        sa.Column("has_feedback", sa.Boolean(), nullable=False),
        sa.Column("has_reward", sa.Boolean(), nullable=False, comment="a raw reward is among the feedback"),
        sa.PrimaryKeyConstraint("decision_id", "policy"),
    )
    op.create_index("waiting_age", "waiting", ["policy", "decided_at", "decision_id"], unique=False)
    op.create_index("waiting_ready", "waiting", ["policy", "has_feedback", "has_outcome", "decided_at"], unique=False)
    op.create_index("waiting_unanswered", "waiting", ["run_by", "has_outcome", "decided_at"], unique=False)
    op.create_table(
        "closures",
        sa.Column("policy", sa.String(length=40), nullable=False),
        sa.Column("decision_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False, comment="closed or quarantined"),
        sa.Column("field", sa.String(length=64), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["decision_id"],
            ["decisions.id"],
        ),
        sa.PrimaryKeyConstraint("policy", "decision_id"),
    )
    op.create_table(
        "feedback",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("decision_id", sa.String(length=64), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("value", sa.Text(), nullable=False, comment="JSON number, or list of gold answers"),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column(
            "late", sa.Boolean(), nullable=False, comment="its decision was closed before, in the ledger that decided"
        ),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["decision_id"],
            ["decisions.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("feedback_decision", "feedback", ["decision_id"], unique=False)
    op.create_table(
        "outcomes",
        sa.Column("decision_id", sa.String(length=64), nullable=False),
        sa.Column("body_hash", sa.String(length=64), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("trace", sa.Text(), nullable=False, comment="JSON list of events"),
        sa.Column("cost", sa.Text(), nullable=False, comment="JSON object"),
        sa.Column("steps", sa.Double(), nullable=False),
        sa.Column("stop_reason", sa.String(length=64), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("run_by", sa.String(length=16), nullable=False),
        sa.Column("made_by", sa.Text(), nullable=False, comment="JSON object: params, generator, retriever, budget"),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["decision_id"],
            ["decisions.id"],
        ),
        sa.PrimaryKeyConstraint("decision_id"),
    )
    op.create_table(
        "updates",
        sa.Column("policy", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("decision_id", sa.String(length=64), nullable=False),
        sa.Column("arm", sa.String(length=64), nullable=False),
        sa.Column("propensity", sa.Double(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("quality", sa.Double(), nullable=False),
        sa.Column("cost", sa.Double(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("minimum", sa.Double(), nullable=False),
        sa.Column("maximum", sa.Double(), nullable=False),
        sa.Column("terms", sa.Text(), nullable=False, comment="JSON object: price per unit of cost"),
        sa.Column("preset", sa.String(length=32), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("feedback_ids", sa.Text(), nullable=False, comment="JSON list"),
        sa.Column("feedback_at", sa.Double(), nullable=True, comment="when the last feedback that made it came in"),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["decision_id"],
            ["decisions.id"],
        ),
        sa.PrimaryKeyConstraint("policy", "seq"),
        sa.UniqueConstraint("policy", "decision_id", name="updates_decision_once"),
    )


def downgrade() -> None:
    op.drop_table("updates")
    op.drop_table("outcomes")
    op.drop_index("feedback_decision", table_name="feedback")
    op.drop_table("feedback")
    op.drop_table("closures")
    op.drop_index("waiting_unanswered", table_name="waiting")
    op.drop_index("waiting_ready", table_name="waiting")
    op.drop_index("waiting_age", table_name="waiting")
    op.drop_table("waiting")
    op.drop_index("snapshots_latest", table_name="snapshots")
    op.drop_table("snapshots")
    op.drop_table("policies")
    op.drop_table("leases")
    op.drop_index("decisions_version", table_name="decisions")
    op.drop_index("decisions_made_at", table_name="decisions")
    op.drop_table("decisions")
