"""Erasures: what was made blank, and when."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None
oldest_code = "0007"

_LONG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "erasures",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("selection", sa.Text(), nullable=False, comment="JSON object: decision, tenant, before"),
        sa.Column("features", sa.Boolean(), nullable=False, comment="features too"),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True, comment="NULL: it was interrupted, or goes on"),
        sa.Column("erased_to", sa.String(64), nullable=False, comment="id of the last decision that was looked at"),
        sa.Column("decisions", _LONG, nullable=False, comment="erased in the database"),
        sa.Column("waiting", _LONG, nullable=False, comment="of these, closed by it"),
        sa.Column("archived", _LONG, nullable=False, comment="erased in the archive"),
        sa.PrimaryKeyConstraint("number"),
    )


def downgrade() -> None:
    op.drop_table("erasures")
