"""Cancellations that callers asked for; an index of outcomes by time."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
oldest_code = "0002"


def upgrade() -> None:
    op.create_table(
        "cancellations",
        sa.Column("decision_id", sa.String(length=64), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["decision_id"],
            ["decisions.id"],
        ),
        sa.PrimaryKeyConstraint("decision_id"),
    )
    op.create_index("outcomes_made_at", "outcomes", ["made_at"], unique=False)


def downgrade() -> None:
    op.drop_index("outcomes_made_at", table_name="outcomes")
    op.drop_table("cancellations")
