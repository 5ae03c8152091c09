"""Traces are kept compressed from now on; the index that only `verify --deep` read is gone.

Rows that are there stay as they are. Both steps are quick at any size; on SQLite the file shrinks by `VACUUM` alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("decisions_version", table_name="decisions")
    comment = "the same, compressed (storage/packing.py); then trace is empty"
    op.add_column("outcomes", sa.Column("packed_trace", sa.LargeBinary(), nullable=True, comment=comment))


def downgrade() -> None:
    with op.batch_alter_table("outcomes") as table:
        table.drop_column("packed_trace")
    op.create_index("decisions_version", "decisions", ["version", "id"], unique=False)
