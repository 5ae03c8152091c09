"""Checkpoints of policies, and the sha256 chain over each ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
oldest_code = "0003"


def upgrade() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("policy", sa.String(length=40), nullable=False),
        sa.Column("version", sa.String(length=128), nullable=False),
        sa.Column("algorithm", sa.String(length=40), nullable=False),
        sa.Column("params", sa.Text(), nullable=False, comment="JSON object"),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False, comment="of the policy, as in snapshots"),
        sa.Column("chain", sa.String(length=64), nullable=False, comment="of the updates up to last_seq"),
        sa.Column("encoder_hash", sa.String(length=64), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column(
            "verified_at",
            sa.Double(),
            nullable=True,
            comment="when a verify that found no fault got here; NULL: none has",
        ),
        sa.Column(
            "decided_before",
            sa.Double(),
            nullable=True,
            comment="that verify checked every decision made before this time",
        ),
        sa.Column("decisions", sa.BigInteger(), nullable=True, comment="their number"),
        sa.PrimaryKeyConstraint("policy", "version"),
    )
    op.create_table(
        "chains",
        sa.Column("policy", sa.String(length=40), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False, comment="the last update that is in the chain"),
        sa.Column(
            "sha256",
            sa.String(length=64),
            nullable=False,
            comment="over every update up to there, each with what came before",
        ),
        sa.PrimaryKeyConstraint("policy"),
    )


def downgrade() -> None:
    op.drop_table("chains")
    op.drop_table("checkpoints")
