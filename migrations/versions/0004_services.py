"""Services: the encoder of a ledger, arms of what waits."""

from alembic import op
from sqlalchemy import Column

from ragbandit.router.storage.sql.tables import answer_queue, policies

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None
oldest_code = "0001"

_ADDED = (policies.c.encoder, answer_queue.c.arm)


def upgrade() -> None:
    for column in _ADDED:
        op.add_column(column.table.name, Column(column.name, column.type, comment=column.comment))


def downgrade() -> None:
    for column in _ADDED:
        op.drop_column(column.table.name, column.name)
