"""Traces are kept compressed from now on; the index that only `verify --deep` read is gone.

Rows that are there stay as they are. Both steps are quick at any size; on SQLite the file shrinks by `VACUUM` alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None
oldest_code = "0008"


def upgrade() -> None:
    op.drop_index("decisions_version", table_name="decisions")
    comment = "the same, compressed (storage/rows/packing.py); then trace is empty"
    op.add_column("outcomes", sa.Column("packed_trace", sa.LargeBinary(), nullable=True, comment=comment))
    _describe_features("float32 or float16, little endian, see storage/rows/feature_bytes.py")


def _describe_features(comment: str) -> None:
    if op.get_bind().dialect.name == "postgresql":  # SQLite keeps no comments
        op.alter_column("decisions", "features", existing_type=sa.LargeBinary(), comment=comment)


def downgrade() -> None:
    _describe_features("float32, little endian")
    with op.batch_alter_table("outcomes") as table:
        table.drop_column("packed_trace")
    op.create_index("decisions_version", "decisions", ["version", "id"], unique=False)
