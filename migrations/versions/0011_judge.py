"""Decisions that wait for the judge, and what the judge did and cost by day.

Both tables are new and empty; nothing that is there changes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None
oldest_code = "0011"

_LONG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_COUNTS = (
    ("begun", "judgements that began"),
    ("scored", "scores stored"),
    ("failed", "tries that gave no score"),
    ("given_up", "decisions that were tried too often"),
    ("expired", "decisions that waited too long"),
    ("suspicious", "decisions with a text that addresses the judge"),
    ("skipped", "decisions not judged, since too many waited"),
    ("prompt_tokens", None),
    ("completion_tokens", None),
)


def upgrade() -> None:
    due, begun = "no judge begins before; while one works, when it is given up", "begun, without those that a failing"
    op.create_table(
        "judge_due",
        sa.Column("decision_id", sa.String(length=64), sa.ForeignKey("decisions.id"), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False, comment=due),
        sa.Column("made_at", sa.Double(), nullable=False, comment="when its outcome came in"),
        sa.Column("share", sa.Double(), nullable=False, comment="the share of decisions that were judged then"),
        sa.Column("attempts", sa.Integer(), nullable=False, comment=f"{begun} server ended"),
        sa.Column("failures", sa.Integer(), nullable=False, comment="tries that a failing server ended"),
        sa.PrimaryKeyConstraint("decision_id"),
    )
    op.create_index("judge_due_at", "judge_due", ["due_at"])
    op.create_index("judge_due_made_at", "judge_due", ["made_at"])
    op.create_table(
        "judge_days",
        sa.Column("day", sa.String(length=10), nullable=False, comment="UTC"),
        sa.Column(
            "shard",
            sa.Integer(),
            nullable=False,
            autoincrement=False,
            comment="0: moved by judges; summed when read",
        ),
        *(sa.Column(name, _LONG, nullable=False, comment=comment) for name, comment in _COUNTS),
        sa.Column("dollars", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("day", "shard"),
    )


def downgrade() -> None:
    op.drop_table("judge_days")
    op.drop_table("judge_due")
    op.get_bind().execute(sa.text("DELETE FROM counters WHERE name = 'judge_due'"))
