"""Which code may use the database, beside its revision: a release that meets a newer schema looks there.

One column of Alembic's own table of one row; nothing that is there changes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None
oldest_code = "0011"


def upgrade() -> None:
    op.add_column("alembic_version", sa.Column("oldest_code", sa.String(length=32), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("alembic_version") as batch:
        batch.drop_column("oldest_code")
