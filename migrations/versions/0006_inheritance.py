"""Labels inherit in batches and can be retired: how far each is."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None
oldest_code = "0006"


def upgrade() -> None:
    for column in (
        sa.Column("retired_at", sa.Double(), nullable=True, comment="no decision waits for it; NULL: in use"),
        sa.Column("inheriting", sa.String(16), nullable=True, comment="insert or again; NULL: it has every decision"),
        sa.Column("inherited_to", sa.String(64), nullable=True, comment="id of the last decision of that walk"),
        sa.Column(
            "inherit_after",
            sa.String(20),
            nullable=True,
            comment="transactions up to this one have to end first; NULL: not known yet",
        ),
    ):
        op.add_column("policies", column)


def downgrade() -> None:
    with op.batch_alter_table("policies") as table:
        for name in ("inherit_after", "inherited_to", "inheriting", "retired_at"):
            table.drop_column(name)
